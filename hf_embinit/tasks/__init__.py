"""What is trained on: data sets, the embedded corpora, preprocessing, metrics."""
