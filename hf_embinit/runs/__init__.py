"""What a run leaves behind: its record, its folder, its figures and its model card."""
