"""What a run leaves behind: its folder, its record `results.json`, the files that it declares publishable.

Also means over records. Cards of records are made in `hf_embinit.cards`; nothing here trains.
"""

from .aggregate import NO_EFFECT, Experiment, Setting, compare_settings, results_table
from .checkpoints import START_NAME, start_damage, write_digests
from .files import (
    RESULTS_NAME,
    RunFiles,
    check_report_folder,
    declare_files,
    model_folders,
    run_files,
    tokenizer_names,
)
from .folder import (
    ARGUMENTS_NAME,
    keep_inputs,
    list_checkpoints,
    prepare_run_folder,
    remove_empty_runs,
)
from .found import RETOKENIZATION, find_records, none_found, read_result
from .lock import unlock_folder
from .places import is_local_data, public_record, shorten, without_places
from .record import (
    RunRecord,
    collect_versions,
    device_name,
    history_from_log,
    is_finished,
    lost_a_loss,
    read_record,
    samples_name,
    scored_split,
    shape_problem,
    write_record,
)
from .writing import to_plain, write_json, write_text

__all__ = [
    "ARGUMENTS_NAME",
    "NO_EFFECT",
    "RESULTS_NAME",
    "RETOKENIZATION",
    "START_NAME",
    "Experiment",
    "RunFiles",
    "RunRecord",
    "Setting",
    "check_report_folder",
    "collect_versions",
    "compare_settings",
    "declare_files",
    "device_name",
    "find_records",
    "history_from_log",
    "is_finished",
    "is_local_data",
    "keep_inputs",
    "list_checkpoints",
    "lost_a_loss",
    "model_folders",
    "none_found",
    "prepare_run_folder",
    "public_record",
    "read_record",
    "read_result",
    "remove_empty_runs",
    "results_table",
    "run_files",
    "samples_name",
    "scored_split",
    "shape_problem",
    "shorten",
    "start_damage",
    "to_plain",
    "tokenizer_names",
    "unlock_folder",
    "without_places",
    "write_digests",
    "write_json",
    "write_record",
    "write_text",
]
