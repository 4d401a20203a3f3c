"""Wrong command lines of `hf-embinit` and of the recipes: one sentence, exit code 1 or 2, nothing left."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders.command_line import embinit, save_bert, save_bert_vectors
from builders.recipes import run_recipe
from builders.run_folders import run_folder
from safetensors.torch import load_file, save_file

COMMANDS = """
hf-embinit | the following arguments are required: COMMAND
hf-embinit lst | Unknown command 'lst'. Did you mean: list
hf-embinit --colour | Unknown flag before a command '--colour'
hf-embinit list --colour | Unknown flag of `hf-embinit list` '--colour'. Available: --help
hf-embinit expand model --tokns a | '--tokns'. Did you mean: --tokens
hf-embinit expand full --tokens '-->' --output_dir o | --tokens '-->': write --tokens='-->', since it begins
hf-embinit expand full --tokens -x --output_dir o | --tokens -x: write --tokens=-x
hf-embinit list -x | Unknown flag of `hf-embinit list` '-x'
hf-embinit completion fish | invalid choice: 'fish' (choose from 'bash', 'zsh')
hf-embinit site full --output_dir o | the following arguments are required: --sources
hf-embinit site full --sources vectors.txt --output_dir o | no run's results.json below 'full'
hf-embinit site full --sources vectors.txt --output_dir full | --output_dir full is not empty
hf-embinit list nothing* | Unknown init 'nothing*'. Available: align
hf-embinit publish run user/x --private --dry_run --no-private | --private --no-private: leave one of them out
hf-embinit list glovee* | Unknown init 'glovee*'. Did you mean: glove
hf-embinit list --purpose table_ | invalid choice: 'table_'
hf-embinit init model --init xavier | required: --output_dir
hf-embinit init model --init glvoe --output_dir o | Unknown init 'glvoe'. Did you mean: glove
hf-embinit init model --init '' --output_dir o | Unknown init ''
hf-embinit init model --init xavier --output_dir o --seed one | --seed: invalid int value: 'one'
hf-embinit init model --init xavier --output_dir o --seed -1 | seed=-1: expected an integer from 0
hf-embinit init model --init xavier --output_dir o --option std=1 | init 'xavier' has no option 'std'
hf-embinit init model --init normal --output_dir o --option std=-1 | std=-1: expected a finite number at least
hf-embinit init model --init normal --output_dir o --option std=nan | std='nan': expected a finite number
hf-embinit init model --init normal --output_dir o --option std=NaN | std=nan: expected a finite number
hf-embinit init model --init normal --output_dir o --option mean=Infinity | mean=inf: expected a finite number
hf-embinit init model --init normal --output_dir o --option std | --option std: expected name=value
hf-embinit init model --init normal --output_dir o --option std=1 --option std=2 | std=2: std is given twice
hf-embinit init model --init mean --output_dir o | whole tables are made by
hf-embinit init model --init glove --output_dir o | give vectors= (--vectors) the path of glove.840B.300d.zip
hf-embinit init model --init pretrained --output_dir o | needs vectors= (--vectors)
hf-embinit init model --init xavier --vectors vectors.txt --output_dir o | 'xavier' uses no vectors, but
hf-embinit init model --init pretrained --vectors nowhere.txt --output_dir o | 'nowhere.txt' is no file
hf-embinit init model --init pretrained --vectors short.txt --output_dir o | short.txt, line 2: 2 numbers
hf-embinit init model --init pretrained --vectors words.txt --output_dir o | line 2: 'x' is not a number
hf-embinit init model --init pretrained --vectors narrow.txt --output_dir o | have width 3, the model's
hf-embinit init model --init pretrained --vectors empty.txt --output_dir o | empty.txt is empty
hf-embinit init model --init pretrained --vectors binary.txt --output_dir o | line 1: the file is UTF-16
hf-embinit init model --init pretrained --vectors corrupt --output_dir o | corrupt/model.safetensors, which is
hf-embinit init model --init pretrained --vectors nan --output_dir o | the row of token '[UNK]' in 'nan' is
hf-embinit init model --init pretrained --vectors full --output_dir o | full has no config.json
hf-embinit init nowhere --init xavier --output_dir o | model 'nowhere' is not in the local cache
hf-embinit init a/b/c --init xavier --output_dir o | model 'a/b/c': there is no such folder here
hf-embinit init '' --init xavier --output_dir o | model: '' names nothing
hf-embinit init model --init xavier --output_dir '' | --output_dir '' is no folder
hf-embinit init model --init xavier --output_dir full | --output_dir full is not empty
hf-embinit init model --init xavier --output_dir file | --output_dir file is a file
hf-embinit init model --init xavier --output_dir file/o | a part of this path is a file, not a folder
hf-embinit init corrupt --init xavier --output_dir o | corrupt/model.safetensors is no safetensors file, or a
hf-embinit init cut --init xavier --output_dir o | cut/model.safetensors is truncated
hf-embinit init shape --init xavier --output_dir o | word_embeddings.weight is [320, 16] in model.safetensors,
hf-embinit init no_config --init xavier --output_dir o | no_config
hf-embinit init bad_config --init xavier --output_dir o | bad_config/config.json
hf-embinit init list_config --init xavier --output_dir o | 'list_config'
hf-embinit init no_weights --init xavier --output_dir o | no_weights has neither model.safetensors nor
hf-embinit init unknown_type --init xavier --output_dir o | model type `brt`
hf-embinit init no_class --init xavier --output_dir o | the config.json names no model class
hf-embinit init no_events --init xavier --output_dir o | is no list of events: it was not written by
hf-embinit init no_tokenizer --init xavier --output_dir o | the tokenizer of 'no_tokenizer' (or give
hf-embinit init model --tokenizer nowhere --init xavier --output_dir o | --tokenizer 'nowhere' is no folder
hf-embinit init model --init xavier --link --config_only --output_dir o | --config_only draws all weights anew
hf-embinit expand model --output_dir o | one of the arguments --tokens --tokens_file
hf-embinit expand model --tokens <z> | expand needs --output_dir (or --dry_run)
hf-embinit expand model --tokens <z> --dry_run --measure | --measure compares the model before and after
hf-embinit expand model --tokens_file nowhere --output_dir o | --tokens_file nowhere is no file here
hf-embinit expand model --tokens_file broken.yaml --output_dir o | broken.yaml
hf-embinit expand model --tokens_file object.json --output_dir o | object.json
hf-embinit expand model --tokens_file binary.txt --output_dir o | --tokens_file binary.txt cannot be read as
hf-embinit expand model --tokens '' --output_dir o | has the empty token ''
hf-embinit expand model --tokens <z> --init subword_meen --output_dir o | Did you mean: subword_mean
hf-embinit expand model --tokens <z> --init mean_cov --option scale=NaN --output_dir o | scale=nan: expected
hf-embinit expand model --tokens <z> --init mean_cov --option scale=-1 --output_dir o | scale=-1: expected
hf-embinit expand model --tokens <z> --init mean_cov --option scal=1 --output_dir o | has no option 'scal'
hf-embinit expand model --tokens <z> --init copy --output_dir o | of= is missing
hf-embinit expand model --tokens <z> --init copy --option of=nowhere --output_dir o | of='nowhere' is not one
hf-embinit expand model --tokens <z> --init pretrained_map --output_dir o | needs vectors= (--vectors)
hf-embinit expand model --tokens <z> --pad_to_multiple_of -8 --output_dir o | pad_to_multiple_of=-8: expected
hf-embinit expand model --tokens <z> --pad_to_multiple_of 1000000000000 --output_dir o | rows need
hf-embinit expand model --tokens <z> --slots reservd --output_dir o | --slots reservd: expected the word
hf-embinit expand model --tokens <z> --slots reserved --output_dir o | there are 0 unused tokens that could be
hf-embinit expand model --tokens <z> --slots 99999 --output_dir o | slots has 99999: expected ids
hf-embinit expand nan --tokens <z> --output_dir o | has NaN or infinite entries: load the model's weights
hf-embinit expand no_tokenizer --tokens <z> --output_dir o | the tokenizer of 'no_tokenizer'
hf-embinit expand model --tokens <z> --output_dir /proc/nowhere/o | /proc/nowhere/o cannot be
hf-embinit merge model nowhere --output_dir o | model 'nowhere' is not in the local cache
hf-embinit merge nowhere full --output_dir o | model 'nowhere' is not in the local cache
hf-embinit prune model --output_dir o | prune needs --corpus or --keep
hf-embinit prune model --corpus nowhere.txt --output_dir o | --corpus nowhere.txt is no file here
hf-embinit prune model --keep nowhere --output_dir o | keep has 'nowhere', which is not in the tokenizer's
hf-embinit prune model --keep the --min_count 0 --output_dir o | --min_count 0: expected a positive integer
hf-embinit prune cut --corpus corpus.txt --output_dir o | cut/model.safetensors is truncated
hf-embinit doctor file | file is a file: give the folder that it is in
hf-embinit doctor nowhere | model 'nowhere' is not in the local cache
hf-embinit doctor model --fix full | --fix full is not empty
hf-embinit doctor model --tokenizer nowhere | --tokenizer 'nowhere' is no folder here
hf-embinit surgery model reversed | surgery needs --output_dir
hf-embinit surgery model upside_down --output_dir o | Unknown surgery 'upside_down'
hf-embinit surgery model remove_last_99 --output_dir o | would leave none of the 2 layers
hf-embinit surgery model reversed --option x=1 --output_dir o | surgery 'reversed' has no option 'x'
hf-embinit surgery model reversed --link --output_dir o | reversed changes more than tables
hf-embinit surgery model donor_embeddings --output_dir o | needs donor=
hf-embinit surgery model donor_embeddings --option donor=nowhere --output_dir o | 'nowhere' is not in the
hf-embinit surgery no_tokenizer reversed --output_dir o | the tokenizer of 'no_tokenizer'
hf-embinit analyze nowhere.txt --output_dir o | 'nowhere.txt' is no file or folder here
hf-embinit analyze vectors.txt --k 0 --output_dir o | --k 0: expected a whole number of 1 or more
hf-embinit analyze vectors.txt --k 999999 --output_dir o | --k 999999: each of the
hf-embinit analyze vectors.txt --seed -1 --output_dir o | --seed -1: expected an integer
hf-embinit analyze vectors.txt --lengths 1 --output_dir o | --lengths has 1: expected a whole number of 2 or
hf-embinit analyze vectors.txt --names a b --output_dir o | --names a b: give 1 different names
hf-embinit analyze vectors.txt --corpus captions:xx --output_dir o | has no column 'xx'; it has: de, en
hf-embinit analyze vectors.txt --analogies empty.txt --output_dir o | empty.txt has no question
hf-embinit analyze vectors.txt --k 2 --sample 5 --lengths 8 --output_dir /proc/x | /proc/x cannot be
hf-embinit analyze vectors.txt --output_dir file | --output_dir file cannot be written
hf-embinit analyze nan --output_dir o | nan has NaN or infinite values
hf-embinit analyze no_tokenizer --output_dir o | no_tokenizer/tokenizer.json cannot be read
hf-embinit compare model nowhere | model 'nowhere' is not in the local cache
hf-embinit compare model vectors.txt --k 0 | k=0: expected a whole number of 1 or more
hf-embinit compare model model --table nowhere | table='nowhere' names no tensors of model
hf-embinit compare model model --revisions a b | revision='a' was given, but 'model' is a folder
hf-embinit compare vectors.txt model --revisions a b | revision='a' was given, but 'vectors.txt' is a file
hf-embinit manifest file | file is a file: give the folder that it is in
hf-embinit manifest nowhere | config.json of model 'nowhere' is not in the local cache
hf-embinit manifest no_events | no_events/config.json is no list of events
hf-embinit manifest list_config | list_config/config.json holds an array, expected an object
hf-embinit results nowhere | results.json of model 'nowhere' is not in the local cache
hf-embinit results results | no run's results.json below 'results'
hf-embinit publish nowhere user/x | nowhere is no folder
hf-embinit publish run 'no name' | repo_id='no name' is no name of a Hub repository
hf-embinit publish run 'no name' --dry_run | repo_id='no name' is no name of a Hub repository
hf-embinit publish model user/x --dry_run | whose rows hf_embinit did not make
hf-embinit cards nowhere o | no run's results.json below 'nowhere'
hf-embinit cards results o | no run's results.json below 'results'
hf-embinit cards run file | a part of this path is a file
hf-embinit cards run o --pages nowhere.md | --pages nowhere.md cannot be read
hf-embinit cards run o --pages full | --pages full cannot be read
hf-embinit retokenize model gpt2 | required: --output_dir
hf-embinit retokenize model nowhere --output_dir o | new_tokenizer 'nowhere' is no folder here
hf-embinit retokenize nowhere gpt2 --output_dir o | the tokenizer of 'nowhere'
hf-embinit retokenize model gpt2 --output_dir full | --output_dir full is not empty
hf-embinit retokenize model gpt2 --init xavier --output_dir o | makes no rows for another tokenizer
hf-embinit retokenize model gpt2 --init trans_tokenizer --output_dir o | needs parallel= (--parallel)
hf-embinit retokenize model gpt2 --init focus --vectors nowhere --output_dir o | model 'nowhere' is not in
hf-embinit retokenize model gpt2 --init focus --vectors a b c --output_dir o | --vectors got 3 files: give one
hf-embinit retokenize model gpt2 --init fvt --vectors vectors.txt --output_dir o | 'fvt' reads no vectors=
hf-embinit retokenize model gpt2 --init omp --donor nowhere --output_dir o | model 'nowhere' is not in the
hf-embinit retokenize model gpt2 --init align --texts empty.txt --output_dir o | texts= has no text
hf-embinit retokenize model gpt2 --init align --texts nowhere --output_dir o | --texts nowhere is no file here
hf-embinit retokenize model gpt2 --init fvt --option x=1 --output_dir o | init 'fvt' has no option 'x'
hf-embinit retokenize model gpt2 --init fvt --seed -1 --output_dir o | seed=-1: expected an integer from 0
hf-embinit retokenize model gpt2 --init fvt --pad_to_multiple_of 0 --output_dir o | pad_to_multiple_of=0
hf-embinit retokenize nowhere gpt2 --init fvt --refine nowhere --output_dir o | Unknown refinement 'nowhere'
hf-embinit retokenize nowhere gpt2 --init fvt --refine focus --output_dir o | Unknown refinement 'focus'
hf-embinit retokenize nowhere gpt2 --init fvtt --output_dir o | Unknown init 'fvtt'. Did you mean: fvt
hf-embinit retokenize model gpt2 --init fvt --refine token_distillation --output_dir o | give untie=True
hf-embinit retokenize model gpt2 --pad_to_multiple_of 1000000000000 --output_dir o | rows need
hf-embinit retokenize model gpt2 --donor model --output_dir o | new tokens that the old
hf-embinit retokenize model gpt2 --match fuzy --output_dir o | match='fuzy': expected 'canonical', 'fuzzy' or
hf-embinit retokenize model gpt2 --parallel nowhere.tsv --output_dir o | parallel='nowhere.tsv' is no file
hf-embinit retokenize model gpt2 --parallel corpus.txt --output_dir o | corpus.txt, line 1 is one column
hf-embinit retokenize model gpt2 --parallel broken.jsonl --output_dir o | broken.jsonl, line 1 is no JSON
hf-embinit retokenize model gpt2 --parallel binary.txt --output_dir o | binary.txt' cannot be read as UTF-8
hf-embinit retokenize model gpt2 --dictionary empty.txt --output_dir o | empty.txt has no pair of texts
hf-embinit retokenize model no_tokenizer --output_dir o | new_tokenizer 'no_tokenizer' cannot be read
hf-embinit retokenize cut gpt2 --init fvt --output_dir o | cut/model.safetensors is truncated
hf-embinit retokenize nan gpt2 --init fvt --output_dir o | every old row of bert.embeddings.word_embeddings
hf-embinit explain model | required: tokens
hf-embinit explain model the | model has no embinit_coefficients.safetensors
hf-embinit train | required: recipe
hf-embinit train translat | Unknown recipe 'translat'. Did you mean: translate
hf-embinit cards run '' | folder: '' names nothing
hf-embinit doctor model --refill nowhere --fix o | --refill nowhere: no finding here
hf-embinit merge model full --output_dir o | full has no adapter_config.json: give an adapter
hf-embinit surgery model + --output_dir o | surgery '+': expected a name
"""
RECIPES = """
translate.py --initt glove | unknown argument '--initt'. Did you mean: --init?
translate.py --init glove --no_cuda | '--no_cuda' is an argument of transformers 4: use --use_cpu now
translate.py --dataset captions --cuda_graphs --output_dir o | --cuda_graphs needs a CUDA GPU, and this run is
classify.py --logging-dir=logs | use the environment variable TENSORBOARD_LOGGING_DIR now
translate.py --init glvoe --output_dir o | Unknown init 'glvoe'. Did you mean: glove
translate.py --init xavier --vectors vectors.txt --output_dir o | --vectors 'vectors.txt' is given, but --init
translate.py --init normal --init_options std=NaN --output_dir o | std=nan: expected a finite number at least
translate.py --init_options std=1 --init_options mean=2 --output_dir o | --init_options is given twice
translate.py --init normal --init_options std=1 std=2 --output_dir o | 'std=2': std is given twice
translate.py --dataset multi30kk --output_dir o | --dataset 'multi30kk' is no folder, no Hub id
translate.py --dataset data --output_dir o | data has no test split; give --test_file
translate.py --source_lang xx --output_dir o | --source_lang 'xx' is not in the train split; it has: de, en
translate.py --source_lang '' --output_dir o | --source_lang '': expected a text that is not empty
translate.py --adam_beta1 2 --output_dir o | --adam_beta1 2.0: expected a number from 0 to below 1
translate.py --warmup_steps nan --output_dir o | --warmup_steps nan: expected a finite number at least 0
translate.py --neftune_noise_alpha -1 --output_dir o | --neftune_noise_alpha -1.0: expected a finite number
translate.py --optim_args foo --output_dir o | --optim_args foo (expected name=value, ...): not enough
translate.py --optim galore_adamw --output_dir o | --optim galore_adamw: You need to
translate.py --torch_compile_mode x --output_dir o | --torch_compile_mode x: known: default,
translate.py --torch_compile_backend foo --output_dir o | --torch_compile_backend foo: known: aot_
translate.py --d_model 0 --output_dir o | --d_model 0: expected a whole number of 1 or more
translate.py --d_model 2.5 --output_dir o | --d_model/--d-model: invalid int value: '2.5'
translate.py --dropout_rate nan --output_dir o | --dropout_rate nan: expected a finite number
translate.py --position_scale 0 --output_dir o | --position_scale 0.0: expected a finite number above 0
translate.py --position_encoding sine --output_dir o | invalid choice: 'sine'
translate.py --min_frequency 1000000 --output_dir o | min_frequency=1000000 leaves no token of the text
translate.py --min_frequency 0 --output_dir o | --min_frequency 0: expected a whole number of 1 or more
translate.py --max_source_length 0 --output_dir o | --max_source_length 0: expected
translate.py --max_target_length -1 --output_dir o | --max_target_length -1: expected
translate.py --num_beams 0 --output_dir o | --num_beams 0: expected
translate.py --max_train_samples 0 --output_dir o | --max_train_samples 0: expected
translate.py --max_predict_samples -1 --output_dir o | --max_predict_samples -1: expected
translate.py --seed -1 --output_dir o | --seed -1: expected an integer from 0 to 2**32 - 1
translate.py --learning_rate nan --output_dir o | --learning_rate nan: expected a finite number at least 0
translate.py --learning_rate -1 --output_dir o | --learning_rate -1.0: expected a finite number at least 0
translate.py --label_smoothing_factor 1 --output_dir o | --label_smoothing_factor 1.0: expected a number from
translate.py --num_train_epochs -1 --output_dir o | --num_train_epochs -1.0: expected a finite number at least
translate.py --per_device_train_batch_size 0 --output_dir o | --per_device_train_batch_size 0: expected
translate.py --metric_for_best_model blue --output_dir o | --metric_for_best_model blue: not measured here
translate.py --predict_with_generate false --output_dir o | what is scored here is generated text
translate.py --lr_scheduler_type cosine_with_min_lr --output_dir o | --lr_scheduler_type cosine_with_min_lr
translate.py --dataloader_num_workers -1 --output_dir o | --dataloader_num_workers -1: expected
translate.py --do_train false --output_dir o | --do_train False: expected True: a recipe trains and scores
translate.py --max_steps 0 --output_dir o | --max_steps 0: expected 1 or more, or -1 to go by epochs
translate.py --eval_strategy no --output_dir o | or --load_best_model_at_end False
translate.py --output_dir model | --output_dir model holds config.json, and no run of a recipe
translate.py --batch_eval_metrics --output_dir o | --batch_eval_metrics True: expected False
translate.py --eval_do_concat_batches false --output_dir o | --eval_do_concat_batches False: expected True
translate.py --fsdp full_shard --output_dir o | --fsdp shards a model over processes, and this is one
translate.py --fp16 --use_cpu --output_dir o | --fp16 on a CPU: transformers would train in float32
translate.py --report_to wandbb --output_dir o | --report_to wandbb: wandbb is not known to transformers
translate.py --output_dir '' | --output_dir '': expected a text that is not empty
translate.py --output_dir file | --output_dir file is a file, not a folder
translate.py --output_dir file/o | a part of this path is a file, not a folder
translate.py --output_dir run | --output_dir run holds a finished run
translate.py --resume_from_checkpoint nowhere --output_dir o | there is no such folder
translate.py --train_file nowhere.jsonl --output_dir o | the data file 'nowhere.jsonl' does not exist
translate.py --train_file broken.jsonl --output_dir o | 'broken.jsonl' is not a valid .jsonl file
translate.py nowhere.yaml | the settings file 'nowhere.yaml' does not exist
translate.py broken.yaml | the settings file 'broken.yaml' cannot be read
translate.py object.json | unknown argument '--name'
translate.py binary.json | the settings file 'binary.json' cannot be read
translate.py types.yaml --output_dir o | --vectors 5: expected a string
translate.py --push_to_hub --output_dir o | HF_HUB_OFFLINE is set
translate.py --max_steps -5 --output_dir o | --max_steps -5: expected 1 or more, or -1
translate.py --generation_max_length 0 --output_dir o | --generation_max_length 0: expected a whole
translate.py --generation_num_beams 0 --output_dir o | --generation_num_beams 0: expected a whole number of 1
translate.py --eval_accumulation_steps 0 --output_dir o | --eval_accumulation_steps 0: expected a whole number
translate.py --generation_config nowhere --output_dir o | --generation_config nowhere:
translate.py --max_target_length 1 --output_dir o | --max_target_length 1: expected a whole number of 2
chat_tokens.py --seed 4294967296 --output_dir o | --seed 4294967296: expected
translate.py --deepspeed nowhere.json --output_dir o | deepspeed
translate.py --source_column xx --output_dir o | 'xx' is not in the train split
classify.py --learning_rat 3 --output_dir o | unknown argument '--learning_rat'. Did you mean
classify.py --dataloader_drop_last --output_dir o | --dataloader_drop_last True: expected False
classify.py steps.yaml --output_dir o | --save_steps 3 with
classify.py --task sst22 --output_dir o | Unknown task 'sst22'. Did you mean: sst2
classify.py --task data --output_dir o | the train split of --task data has one label only (0)
classify.py --task data --text_columns nowhere --output_dir o | 'nowhere' is not in the train split; it has:
classify.py --model nowhere --output_dir o | --model 'nowhere' is no folder here
classify.py --model model --d_model 16 --output_dir o | --d_model 16 shapes a new vanilla model
classify.py --model corrupt --output_dir o | --model 'corrupt' cannot be read
classify.py --model shape --max_length 16 --output_dir o | in its files, [24] by its config
classify.py --surgery upside --output_dir o | Unknown surgery 'upside'
classify.py --donor model --output_dir o | --donor 'model' is given, but not --surgery donor_embeddings
classify.py --metric_for_best_model matthews_correlation --output_dir o | not measured here; known: loss
language_model.py --metric_for_best_model perplexity --output_dir o | perplexity: not measured here
classify.py --prediction_loss_only True --output_dir o | what is scored here is more than the loss
classify.py --use_liger_kernel --output_dir o | --use_liger_kernel: `pip install liger-kernel`
classify.py --accelerator_config nowhere.json --output_dir o | No such file or directory: 'nowhere.json'
language_model.py --twin_seeds 1 2 --label_smoothing_factor 0.1 --output_dir o | two models add up losses
classify.py --max_length 0 --output_dir o | --max_length 0: expected a whole number of 1 or more
language_model.py --dataset csv --output_dir o | the train split of csv has no column 'text'
language_model.py --block_size 1 --output_dir o | --block_size 1: expected a whole number of 2 or more
language_model.py --max_eval_blocks -1 --output_dir o | --max_eval_blocks -1: expected a whole number of 0 or
language_model.py --twin_seeds 1 1 --output_dir o | --twin_seeds 1 1: give two different seeds
language_model.py --twin_seeds 1 2 --knn_k 0 --output_dir o | --knn_k 0: expected
language_model.py --model model --d_model 16 --output_dir o | --d_model 16 shapes a new vanilla model
language_model.py --model model --tie_word_embeddings true --output_dir o | --model model has its own tables
language_model.py --knn_k 3 --output_dir o | --knn_k 3 is for two models: give --twin_seeds
language_model.py --freeze_rest --output_dir o | --freeze_rest is for a trained model
language_model.py --model model --block_size 8 --output_dir o | --model model is an encoder, which reads the
language_model.py --model run --vectors vectors.txt --output_dir o | --vectors 'vectors.txt' is given, but not
expand_vocab.py --model cut --output_dir o | --model cut cannot be read
expand_vocab.py --inits nowhere --output_dir o | Unknown init 'nowhere'
expand_vocab.py --inits mean_cov:scale=NaN --output_dir o | scale=nan: expected a finite number at least 0 or
expand_vocab.py --inits mean_cov:scale --output_dir o | expected name:option=value
expand_vocab.py --inits mean_cov:scale=1,scale=2 --output_dir o | scale is given twice: leave one out
expand_vocab.py --inits zeros mean zeros --output_dir o | init 'zeros' is given twice
expand_vocab.py --num_new_tokens 0 --output_dir o | --num_new_tokens 0: expected
train_vectors.py --corpus captions:de --language de | required: --output
train_vectors.py --corpus captions --language de --output v.txt | corpus 'captions': give the column too
train_vectors.py --corpus captions:de --language de --output v.txt --dim 0 | --dim 0: expected
train_vectors.py --corpus captions:de --language de --output v.txt --alpha nan | --alpha nan: expected
train_vectors.py --corpus captions:de --language de --output file/v.txt | a part of this path is a file
train_vectors.py --corpus captions:de --language de --output full | --output full cannot be written: this is a
train_vectors.py --corpus captions:de --language de --output vectors.txt | vectors.txt is there already, of
train_vectors.py --corpus captions:de --language de --output object.txt | object.json is there already, of
train_vectors.py --corpus captions:de --language de --output v.txt --push_to_hub | HF_HUB_OFFLINE is set
compare_vocabularies.py --tokenizer gpt2 --reference gpt2 --output_dir run | run holds the results of another
compare_vocabularies.py --tokenizer nowhere --output_dir o | --tokenizer 'nowhere' is no folder here
analyze_embeddings.py --sources vectors.txt --k 0 --output_dir o | --k 0: expected
analyze_embeddings.py --sources vectors.txt --output_dir run | --output_dir run holds the results of another
analyze_embeddings.py vectors.txt | 'vectors.txt' is neither a flag nor a .json or .yaml file of settings; any
analyze_embeddings.py --sources vectors.txt --language '' --output_dir o | --language '': expected a text
position_frontier.py --vectors vectors.txt --analogies empty.txt --output_dir run | run holds the results of
position_frontier.py --vectors vectors.txt --analogies empty.txt --output_dir o | empty.txt has no question
chat_tokens.py --model nowhere --output_dir o | --model nowhere is no folder here
chat_tokens.py --model gpt2 --template nowhere --output_dir o | --template 'nowhere' is no folder here
chat_tokens.py --model cut --output_dir o | --model cut cannot be read
chat_tokens.py --rank 0 --output_dir o | --rank 0: expected a whole number of 1 or more
reproduce.py tabel1 --output_dir o | Unknown study 'tabel1'. Did you mean: table1
reproduce.py study.yaml --output_dir o | the study study.yaml cannot be read
reproduce.py table1 --only nowhere --output_dir o | --only nowhere: no cell of table1 matches
reproduce.py table1 --seeds 0 --output_dir o | --seeds 0: expected a whole number of 1 or more
reproduce.py table1 --set foo --output_dir o | --set 'foo': give argument=value
reproduce.py table1 --set seeed=2 --output_dir o | has no flag --seeed; did you mean seed
reproduce.py table1 --accelerate_config nowhere.yaml --output_dir o | --accelerate_config nowhere.yaml is no
retokenize.py --model nowhere --output_dir o | --model 'nowhere' is no folder here
retokenize.py --model cut --output_dir o | --model 'cut' cannot be read
retokenize.py --model gpt2 --init fvtt --output_dir o | Unknown init 'fvtt'. Did you mean: fvt
retokenize.py --model nowhere --init fvt --refine nowhere --output_dir o | Unknown refinement 'nowhere'
retokenize.py --model gpt2 --init fvt --expand 5 --untie --output_dir o | leave --tokenizer, --refine
retokenize.py --model gpt2 --init fvt --expand 5 --vocab_size 9 --output_dir o | exclude each other
retokenize.py --model gpt2 --init fvt --max_pairs 9 --output_dir o | --max_pairs is for an encoder
retokenize.py --model model --init fvt --num_texts 9 --output_dir o | --num_texts is for a causal
retokenize.py --model gpt2 --init fvt --train all --output_dir o | --train is for training: give --max_steps
retokenize.py --model gpt2 --tokenizer gpt2 --vocab_size 9 --output_dir o | exclude each other
retokenize.py --model gpt2 --init fvt --texts nowhere:text --output_dir o | corpus 'nowhere:text': 'nowhere'
retokenize.py --model model --init fvt --labelled nowhere.csv --output_dir o | data file 'nowhere.csv' does
retokenize.py --model gpt2 --vocab_size 0 --output_dir o | --vocab_size 0: expected a whole number
retokenize.py --model gpt2 --vocab_size -5 --output_dir o | --vocab_size -5: expected
retokenize.py --model gpt2 --num_texts 4 --output_dir o | --num_texts 4: expected a whole number of 5 or more
retokenize.py --model gpt2 --max_steps -1 --output_dir o | --max_steps -1: expected
retokenize.py --model gpt2 --train nothing --output_dir o | invalid choice: 'nothing'
retokenize.py --model gpt2 --learning_rate 0 --output_dir o | --learning_rate 0.0: expected
retokenize.py --model model --max_pairs 0 --output_dir o | --max_pairs 0: expected
retokenize.py --model model --max_test_pairs 0 --output_dir o | --max_test_pairs 0: expected
retokenize.py --model model --pairs broken.jsonl --output_dir o | broken.jsonl, line 1 is no JSON
retokenize.py --model model --seed -1 --output_dir o | --seed -1: expected
retokenize.py --model model --output_dir run | --output_dir run holds a finished run
retokenize.py --model model --output_dir '' | --output_dir '': expected a text that is not empty
"""
SMALL = {
    "translate.py": "--max_steps 1 --max_train_samples 32 --max_eval_samples 4 --max_predict_samples 4",
    "classify.py": "--max_steps 1 --max_train_samples 32 --max_eval_samples 4 --max_predict_samples 4",
    "language_model.py": "--max_steps 1 --max_train_samples 32",
    "expand_vocab.py": "--max_steps 1 --model gpt2",
    "train_vectors.py": "--epochs 1",
    "chat_tokens.py": "--max_steps 1",
    "reproduce.py": "--dry_run",
}
"""What keeps a line short that is wrongly taken for right."""


def lines(text: str) -> list[tuple[str, str]]:
    return [tuple(line.split(" | ")) for line in text.strip().splitlines()]  # type: ignore[misc]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a run, and damaged copies of everything."""
    root = tmp_path_factory.mktemp("place")
    model = save_bert(root / "model")
    save_bert_vectors(root / "vectors.txt")
    run_folder(root / "run")
    run_folder(root / "gpt2", "gpt2")

    def copy(name: str, **settings: object) -> Path:
        shutil.copytree(model, root / name)
        config = json.loads((root / name / "config.json").read_text())
        told = {key: value for key, value in {**config, **settings}.items() if value is not None}
        (root / name / "config.json").write_text(json.dumps(told))
        return root / name

    weights = (model / "model.safetensors").read_bytes()
    (copy("corrupt") / "model.safetensors").write_bytes(b"\0garbage" * 100)
    (copy("cut") / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    tensors = load_file(copy("nan") / "model.safetensors")
    tensors["bert.embeddings.word_embeddings.weight"] *= torch.nan
    save_file(tensors, root / "nan" / "model.safetensors", metadata={"format": "pt"})
    copy("shape", hidden_size=24)
    copy("unknown_type", model_type="brt")
    copy("no_class", architectures=None)
    copy("no_events", embinit="x")
    (copy("no_config") / "config.json").unlink()
    (copy("bad_config") / "config.json").write_text("{")
    (copy("list_config") / "config.json").write_text("[]")
    (copy("no_weights") / "model.safetensors").unlink()
    (copy("no_tokenizer") / "tokenizer.json").write_text("{}")
    for name in ("full", "results", "data", "csv"):
        (root / name).mkdir()
    texts = {
        "file": "x",
        "full/a": "x",
        "empty.txt": "",
        "corpus.txt": "a dog and a man\n",
        "short.txt": "a 1 2 3\nb 1 2\n",
        "words.txt": "a 1 2 3\nb x y z\n",
        "narrow.txt": "a 1 2 3\nb 1 2 3\n",
        "broken.yaml": "- [1, 2\n",
        "types.yaml": "vectors: 5\ninit: glove\n",
        "steps.yaml": "eval_strategy: steps\nsave_strategy: steps\neval_steps: 1\nsave_steps: 3\n",
        "object.json": '{"name": 1}',
        "broken.jsonl": '{"text": "a"\n',
        "study.yaml": "name: x\nrows: [a",
        "results/results.json": "{}",
        "data/train.jsonl": '{"text": "a", "label": 0}\n' * 30,
        "data/validation.jsonl": '{"text": "a", "label": 1}\n' * 10,
        "csv/train.csv": "a,b\n1,2\n",
        "csv/validation.csv": "a,b\n1,2\n",
    }
    for name, text in texts.items():
        (root / name).write_text(text)
    for name in ("binary.txt", "binary.json"):
        (root / name).write_bytes(b"\xff\xfe\x00" * 30)
    return root


def contents(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*")}


def is_refused(
    words: list[str], sentence: str, call: Callable[[], tuple[int, str, str]], place: Path
) -> None:
    before = contents(place)
    code, _, err = call()
    assert code in (1, 2), (words, code)
    last = err.strip().splitlines()[-1]
    assert "error: " in last and sentence in last, last
    assert "Traceback" not in err
    assert contents(place) == before, "something was left behind"


@pytest.mark.parametrize(("line", "sentence"), lines(COMMANDS))
def test_a_wrong_command_is_one_sentence(
    line: str, sentence: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    words = shlex.split(line)[1:]
    is_refused(words, sentence, lambda: embinit(capsys, *words), place)


@pytest.mark.parametrize(("line", "sentence"), lines(RECIPES))
def test_a_wrong_recipe_is_one_sentence(
    line: str, sentence: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    recipe, *words = shlex.split(line)
    if words[0].startswith("-") or recipe == "reproduce.py":
        small = shlex.split(SMALL.get(recipe, ""))
        words = [*words[:1], *small, *words[1:]] if recipe == "reproduce.py" else [*small, *words]

    def call() -> tuple[int, str, str]:
        done = run_recipe(recipe.removesuffix(".py"), *words, HF_EMBINIT_DATA="")
        return done.returncode, done.stdout, done.stderr

    is_refused(words, sentence, call, place)
    assert not os.path.lexists(place / "o")


def test_there_are_enough_of_them() -> None:
    assert len(lines(COMMANDS)) >= 140 and len(lines(RECIPES)) >= 105
