"""Each protection that might be lost in silence, as a patch that takes it away, by the test that
must then fail (mutate.py says how): in every chapter that holds the text, in the tools and the
site's search; the patch of a test of tasks in these.

Not here: the doctor's, which are beside its tests; recipes, which their own tests break
(test_recipes.py); and what a test would read, the line of a refusal: without the check such a test
cannot be green.
"""

AMP = "tests/chapters/test_amp.py"
RANKS = "tests/chapters/test_slurm_ranks.py"
STOP = "tests/chapters/test_stop.py"
FAULTS = "tests/faults/test_faults.py"
EQUAL = "tests/chapters/test_equivalence.py"
EVAL = "tests/chapters/test_exact_eval.py"
SAMPLING = "tests/chapters/test_sampling.py"
RESUME = "tests/chapters/test_resume.py"
ERRORS = "tests/chapters/test_errors.py"
FSDP = "tests/chapters/test_fsdp.py"
ON_GPUS = "tests/pretended/test_training.py"
DATA = "tests/faults/test_faults_data.py"
IMAGES = "tests/tools/test_check_imagenet.py::test_broken_files"
BROADCAST = "dist.broadcast(buffer, src=0)"
GPU_CHECK = "tests/tools/test_gpu_check.py"
TASKS = "tests/handbook/test_task_resume.py"
LINKS = "tests/tools/test_links.py"
SITE = "tests/site/test_site.py"
APPROACHES = "tests/site/test_approaches.py"
SEARCH = f"{SITE}::test_search"
LM = "tests/chapters/test_language_model.py"
GOES_ON = "tests/chapters/test_language_model_resume.py"
DIFFERENCES = "tests/chapters/test_language_model_differences.py"
KILLED = f"{TASKS}::test_killed_and_resumed"
# By the test that notices them: what is lost, in how many files at least, and the patch.
# fmt: off
PATCHES: dict[str, list[tuple[str, int, str, str]]] = {
    f"{EQUAL}::test_trains_as_one_process_would[02_distributed-2]": [
        ("the gradient all-reduce of DDP", 4,
         "model = DistributedDataParallel(raw_model, gradient_as_bucket_view=True)",
         "model = raw_model"),
        ("clipping", 7, "nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)", "pass"),
    ],
    f"{EQUAL}::test_trains_as_one_process_would[04_apex-2]": [
        ("the gradient all-reduce of DDP in 04", 1,
         "model = DistributedDataParallel(model, gradient_as_bucket_view=True)", "pass"),
    ],
    f"{SAMPLING}::test_dropout_differs": [
        ("the seed of a step", 7, "torch.manual_seed(seed_of(args.seed, epoch, step, rank))",
         "pass"),
        ("the rank in the seed", 7, "seed_of(args.seed, epoch, step, rank)",
         "seed_of(args.seed, epoch, step)"),
        ("the step in the seed", 7, "seed_of(args.seed, epoch, step, rank)",
         "seed_of(args.seed, epoch, rank)"),
        ("the epoch in the seed", 7, "seed_of(args.seed, epoch, step, rank)",
         "seed_of(args.seed, step, rank)"),
        ("the seed in the seed", 7, "seed_of(args.seed, epoch, step, rank)",
         "seed_of(epoch, step, rank)"),
    ],
    f"{STOP}::test_stop[inside]": [
        ("the handler of a stop", 7, "signal.SIG_DFL if args.evaluate else note", "signal.SIG_DFL"),
        ("the stop of all ranks together", 6, "            dist.all_reduce(sums)  # [dist]\n", ""),
        ("the images done before a stop", 7, "islice(super().__iter__(), self.done, None)",
         "super().__iter__()"),
        ("the place of a stop", 7, '"step": done,\n            "best"',
         '"step": 0,\n            "best"'),
        ("the status of a stop", 7, "raise SystemExit(75)  # EX_TEMPFAIL", "pass  #"),
        ("the mark of a file from inside an epoch", 7, 'state["model_name"] + INSIDE',
         'state["model_name"]'),
    ],
    f"{STOP}::test_all_wait_for_the_save": [
        ("ranks that wait for the last save", 6, "    dist.barrier()  # [dist] rank 0 may still",
         "    # rank 0 may still"),
    ],
    f"{STOP}::test_when_ranks_meet": [
        ("a meeting every few seconds", 7, "min(row, soon, self.steps)", "min(row, self.steps)"),
    ],
    f"{STOP}::test_saved_inside_epochs": [
        ("saves inside an epoch", 7, "due = time.perf_counter() > self.save_at", "due = False"),
    ],
    f"{STOP}::test_loader_workers_survive": [
        ("loader workers that a stop leaves alone", 7,
         "signal.signal(stop_signal, signal.SIG_IGN)\n\n\ndef kill", "pass\n\n\ndef kill"),
    ],
    f"{STOP}::test_its_checkpoint_can_be_evaluated[06_slurm]": [
        ("signals that an evaluation inherits", 7, "signal.SIG_DFL if args.evaluate else note",
         "signal.getsignal(stop_signal) if args.evaluate else note"),
    ],
    f"{STOP}::test_failing_with_workers[02_distributed]": [
        ("the end of workers that ignore SIGTERM", 8,
         "Finalize(None, kill_workers, exitpriority=0)", "pass"),
    ],
    f"{LM}::test_trains_as_one_process_would[shard x sequence]": [
        ("the places of a part of a sequence", 1,
         'first = length * work.get_local_rank("sequence")', "first = 0"),
        ("the text of each group of ranks", 1, "(micro * groups + group) * size",
         "micro * groups * size"),
        ("the mean over micro-batches", 1, ".mean() / args.accumulate", ".mean()"),
        ("weights that do not decay", 1,
         'weight.dim() > 1 and "tokens." not in name', "True"),
        ("clipping in 09", 1, "args.clip_grad or math.inf)", "math.inf)"),
        ("the tokens of all ranks in TFLOP/s", 1, "tokens * flops_of_token",
         "tokens / dist.get_world_size() * flops_of_token"),
    ],
    f"{LM}::test_flops_of_a_token": [
        ("the embedding, which multiplies nothing", 1, 'if "tokens." not in name:', "if True:"),
        ("attention in the arithmetic", 1, "flops = 12 * args.layers * args.width * args.context",
         "flops = 0"),
        ("gradients that frozen weights do not have", 1, "(6 if weight.requires_grad else 4)", "6"),
    ],
    f"{ON_GPUS}::test_language_model[sequence]": [
        ("windows in pinned memory", 1, "windows = windows.pin_memory()", "pass"),
        ("windows for which nobody waits", 1, "windows.to(device, non_blocking=True)",
         "windows.to(device)"),
    ],
    f"{LM}::test_evaluation_is_exact": [
        ("windows that count once", 1, "losses(model, windows, places)[:real]",
         "losses(model, windows, places)"),
    ],
    f"{LM}::test_order_is_a_permutation": [
        ("the epoch in the order of windows", 1, "repr((key, turn, right))",
         "repr((key[:1], turn, right))"),
    ],
    f"{LM}::test_tokenizer": [
        ("texts that a tokenizer cuts", 1, "self.tokenizer.no_truncation()", "pass"),
        ("tokens of generated text", 1, "Row([coder.encode(texts)[: -coder.width]], coder.width)",
         "Row([synthetic_text(args.synthetic)], 1)"),
    ],
    f"{LM}::test_tokenizer_with_gaps": [
        ("the largest number of a tokenizer", 1, "max(self.tokenizer.get_vocab().values()) + 1",
         "len(self.tokenizer.get_vocab())"),
    ],
    f"{LM}::test_what_is_not_read": [
        ("files that are not read, in tars", 1, "        skipped.update(others)\n", ""),
        ("files that are not read, in a folder", 1, "skipped[ending(path.name)] += 1", "pass"),
        ("what is not read, of tokens that are there", 1,
         'skipped.update(known.get("skipped", {}))', "pass"),
    ],
    f"{GOES_ON}::test_evaluates_other_text": [
        ("all of another text", 1, "elif args.evaluate and args.data and is_unseen(args, row):",
         "elif False:"),
        ("text that the run has trained on", 1, "not in trained_on:", "not in evaluated:"),
        ("text of the run, by its export", 1, "run = told_by(args.weights)", "run = {}"),
        ("text of the run, by the record beside it", 1,
         'return whole[0]["run"] if whole else {}', "return {}"),
        ("a text shorter than a batch", 1, "args.batch_size and not args.evaluate:",
         "args.batch_size:"),
        ("steps where there are no epochs", 1, '        return {"step": done}', "        pass"),
    ],
    f"{GOES_ON}::test_others_may_read_it": [
        ("an export that others may read", 1, "temporary.chmod(mode)", "pass"),
    ],
    "tests/handbook/test_libraries.py::test_folders_in_09": [
        ("what an export of transformers has beside weights", 1, "save_around(args, model)\n",
         "model.config.save_pretrained(args.output_dir)\n"),
        ("the record, which is no other run's", 1, "ours = path.name == RECORD or ", "ours = "),
    ],
    f"{DIFFERENCES}::test_average_of_weights": [
        ("training that does not see the average", 1, 'state["average"].copy_(kept)', "pass"),
    ],
    f"{DIFFERENCES}::test_lora": [
        ("LoRA's scale, merged", 1, "ALPHA / len(a) * b @ a", "b @ a"),
        ("what LoRA freezes", 1, 'weight.requires_grad_("lora_" in name)', "pass"),
        ("a small checkpoint of LoRA", 1, "ignore_frozen_params=True", "strict=True"),
    ],
    f"{DIFFERENCES}::test_offload": [
        ("no pinned memory without a GPU", 1, 'pinned = weights.device_type == "cuda"',
         "pinned = True"),
    ],
    "tests/faults/test_faults_language_model.py::test_full_disk": [
        ("an error of dcp, which is no Exception", 1,
         "except (Exception, dcp.CheckpointException) as error:\n            fail(f\"cannot save",
         "except Exception as error:\n            fail(f\"cannot save"),
    ],
    f"{GOES_ON}::test_on_another_mesh[sequence, then shard]": [
        ("averages of Adam that go on", 1, "averages = {\"state\": state[\"optimizer\"], ",
         "averages = {\"state\": {}, "),
        ("the place of a stop in 09", 1, 'saved.get("step", 0), saved.get("evaluated"',
         '0, saved.get("evaluated"'),
    ],
    f"{GOES_ON}::test_stopped_before_an_evaluation": [
        ("a checkpoint that is written once", 1,
         'told = [bool(record["whole"]) and record["whole"][0]["step"] == step]',
         "told = [False]"),
    ],
    f"{GOES_ON}::test_saved_at_every_step": [
        ("old checkpoints that go", 1, 'record["whole"][args.keep :] if', "[] if"),
    ],
    f"{GOES_ON}::test_killed[after a save]": [
        ("a record of what is begun", 1, 'write_record(args, record | {"begun": step})', "pass"),
    ],
    f"{GOES_ON}::test_metadata_that_runs_a_program": [
        ("a look at what torch will unpickle", 1, '    check_metadata(folder / ".metadata")\n',
         ""),
    ],
    f"{GOES_ON}::test_damaged_files": [
        ("checksums of a checkpoint's files", 1,
         'if checksums(folder, name) != {name: saved["files"][name]}:', "if False:"),
    ],
    f"{RANKS}::test_preempted_while_it_starts": [
        ("a signal before the first step", 1, "    catch_signals(args)  # now:", "    # now:"),
    ],
    f"{FAULTS}::test_told_to_end[03_multiprocessing-SIGTERM]": [
        ("a signal that 03's parent passes on", 1, "        pass_on_signals(context)\n", ""),
    ],
    f"{EVAL}::test_every_count_is_exact[02_distributed-2]": [
        ("the all-reduce of sums", 4, "    dist.all_reduce(totals)  # [dist]\n    loss",
         "    loss"),
        ("the unpadded share", 6,
         "share = list(range(rank, len(val_set), world_size))",
         "share = list(DistributedSampler(val_set, world_size, rank, shuffle=False))"),
        ("the share of a rank", 6, "range(rank, len(val_set), world_size)",
         "range(len(val_set))"),
    ],
    f"{FSDP}::test_tied_weights_and_hidden_buffers[plain]": [
        ("buffers that no state_dict has", 1,
         "    for buffer in model.buffers():  # also those that no state_dict has\n"
         "        dist.broadcast(buffer, src=0)  # [dist]\n", ""),
    ],
    f"{FSDP}::test_weights_are_made_once": [
        ("weights that one rank alone makes", 1, 'with torch.device("meta"):  # [dist]',
         'with torch.device("cpu"):  # [dist]'),
    ],
    f"{FSDP}::test_nets_train_as_in_02[regnet]": [
        ("nets that no rank can make on meta", 1, "except Exception as error:  # of many kinds; a",
         "except OSError as error:  # a"),
    ],
    f"{FSDP}::test_blocks": [
        ("the single layers of a stem together", 1, "(of_blocks or count(child) > limit)", "True"),
        ("blocks with a forward of their own", 1, "type(child).forward is nn.Sequential.forward",
         "True"),
    ],
    f"{FSDP}::test_recompute_keeps_little": [
        ("blocks in place of stages", 1, "or never_called or is_stage", "or never_called"),
    ],
    f"{FSDP}::test_every_block_is_compiled": [
        ("compiling more than 8 blocks of a class", 1, "_limit = 8 + 4 * len(units)", "_limit = 8"),
    ],
    f"{FSDP}::test_the_optimizer_takes_over_what_is_restored": [
        ("what torch does for a fused optimizer", 1, "optimizer.load_state_dict(state)  # moves",
         "for number, slot in state['state'].items(): optimizer.state[weights[number]] = slot  #"),
    ],
    f"{FSDP}::test_optimizers[fused]": [
        ("each rank's part of the momentum", 1, "optimizer.load_state_dict(state)  # moves",
         "pass  #"),
        ("the size of the optimizer's real state", 1, "saved = whole + megabytes(",
         "saved = 2 * megabytes("),
    ],
    f"{EQUAL}::test_trains_as_one_process_would[08_fsdp2-2]": [
        ("weights of rank 0 in 08", 1,
         "set_model_state_dict(model, whole, options=from_rank_0)", "pass"),
    ],
    f"{EVAL}::test_every_count_is_exact[08_fsdp2-2]": [
        ("repeated images that do not count", 1,
         "logits, targets = logits[:left], targets[:left]", "pass"),
    ],
    f"{EVAL}::test_every_count_is_exact[07_dist_eval-2]": [
        ("the all-reduce of the confusion matrix", 1, "dist.all_reduce(pairs)", "pass"),
    ],
    "tests/chapters/test_elsewhere.py::test_weights_without_a_network": [
        ("the weights that --pretrained names", 7, '"DEFAULT" if args.pretrained', "None if True"),
    ],
    f"{EVAL}::test_the_model_of_rank_0_is_evaluated[02_distributed-2]": [
        ("the buffer broadcast", 5, BROADCAST, "pass"),
    ],
    f"{EVAL}::test_the_model_of_rank_0_is_evaluated[01_dataparallel-1]": [
        ("evaluation mode", 7, "model.eval()", "model"),
    ],
    f"{EVAL}::test_every_count_is_exact[01_dataparallel-1]": [
        ("sums in place of means", 7, 'targets, reduction="sum")', "targets)"),
    ],
    f"{SAMPLING}::test_every_view_is_another[0]": [
        ("the epoch in a view", 7, "dataset.set_epoch(epoch)", "dataset.epoch"),
        ("the image in a view", 7, "self.epoch.item(), index)", "self.epoch.item())"),
        ("the seed in a view", 7, "seed_of(self.seed, self.epoch", "seed_of(self.epoch"),
    ],
    f"{SAMPLING}::test_every_view_is_another[2]": [
        ("the epoch that workers see", 7, ".share_memory_()", ""),
    ],
    f"{EQUAL}::test_same_views": [
        ("views that any rank and worker makes alike", 7,
         "torch.default_generator.manual_seed(seed)", "pass"),
    ],
    f"{RESUME}::test_any_workers_have_the_same_dropout": [
        ("dropout's numbers beside those of a view", 7,
         "with torch.random.fork_rng(devices=[]):", "if True:"),
        ("dropout's numbers beside those of a loader", 6,
         '"generator": torch.Generator().manual_seed(args.seed + rank),', '"generator": None,'),
    ],
    f"{SAMPLING}::test_numpy_differs_by_rank": [
        ("numpy's numbers in the workers of a rank", 6,
         "torch.Generator().manual_seed(args.seed + rank)",
         "torch.Generator().manual_seed(args.seed)"),
    ],
    f"{SAMPLING}::test_workers_start_early": [
        ("workers before the process group", 6, "        iter(train_loader)\n", "        pass\n"),
        ("workers of the evaluation before it", 6, "    iter(val_loader)\n", ""),
        ("workers that live on", 7,
         '"persistent_workers": args.workers > 0,', '"persistent_workers": False,'),
    ],
    f"{DATA}::test_little_shared_memory": [
        ("batches that nobody waits for", 6,
         "    val_loader.sampler.clear()\n    iter(val_loader)\n",
         "    iter(val_loader)\n    time.sleep(20)\n    val_loader.sampler.clear()\n"),
    ],
    f"{EQUAL}::test_trains_as_one_process_would[02_distributed-1]": [
        ("set_epoch", 6, "train_loader.sampler.set_epoch(epoch)", "pass"),
        ("the seed of the order", 6, "seed=seed, drop_last", "drop_last"),
        ("orders far from each other", 6, "seed = 1_000_003 * args.seed", "seed = args.seed"),
        ("the linear scaling rule", 7, "args.lr * args.batch_size / 256", "args.lr"),
        ("the warm-up", 7, "if epochs < warmup:", "if False:"),
        ("the epoch in the schedule", 7, "lr_factor(args, epoch + ", "lr_factor(args, "),
        ("zero_grad", 7, "optimizer.zero_grad()  # here, so", "pass  # here, so"),
    ],
    f"{EQUAL}::test_trains_as_one_process_would[01_dataparallel-1]": [
        ("the seed of the order in 01", 1,
         "sampler.generator.manual_seed(1_000_003 * args.seed + epoch)", "sampler.generator"),
    ],
    f"{RESUME}::test_bit_for_bit[01_dataparallel-2-1]": [
        ("the weights of a checkpoint", 7, 'model.load_state_dict(checkpoint["model"])', "pass"),
        ("the momentum of a checkpoint", 6,
         'state["state"] = checkpoint["optimizer"]["state"]', 'state["state"] = {}'),
        ("flags as plain words", 7, "json.dumps(row, default=str)", "json.dumps(row)"),
    ],
    f"{RESUME}::test_what_is_typed_counts": [
        ("settings as they are typed", 6,
         "state = optimizer.state_dict()", 'state = checkpoint["optimizer"]'),
    ],
    f"{SAMPLING}::test_each_image_at_most_once[02_distributed-13]": [
        ("whole batches", 7, "sampler=sampler, drop_last=True,", "sampler=sampler,"),
    ],
    f"{RESUME}::test_groups_keep_their_rates[02_distributed]": [
        ("a rate for each group", 7,
         "        for group in optimizer.param_groups:\n            peak",
         "        for group in optimizer.param_groups[:1]:\n            peak"),
        ("the peak of a rate", 7, 'group.setdefault("initial_lr", group["lr"])', 'group["lr"]'),
    ],
    f"{RESUME}::test_the_same_line_again": [
        ("a first start with --resume", 7,
         'if args.resume == "" and not os.path.lexists(path) and not args.evaluate:', "if False:"),
    ],
    "tests/faults/test_faults.py::test_death_of_a_rank[01_dataparallel-saving-0]": [
        ("atomic saving", 7, 'temporary = path.with_suffix(".tmp")', "temporary = path"),
    ],
    f"{DATA}::test_full_disk": [
        ("one line for a full disk", 7, "    except OSError as error:\n        if temporary",
         "    except ValueError as error:\n        if temporary"),
        ("half a file that is removed", 7, "if temporary.is_file():", "if False:"),
    ],
    f"{ERRORS}::test_ranks_that_disagree[02_distributed-checkpoint]": [
        ("the checkpoint that ranks agree on", 6,
         'checkpoint.get("file", "none")', '"none"'),
        ("the checksums of a checkpoint", 6, "[part.CRC for part in archive.infolist()]", "[]"),
    ],
    f"{DATA}::test_a_link_in_the_place_of_a_save": [
        ("a link that is not written through", 7,
         'temporary.unlink(missing_ok=True)  # a link would be written through\n'
         '        with temporary.open("xb")', 'with temporary.open("wb")'),
    ],
    f"{ERRORS}::test_refused[02_distributed-flipped]": [
        ("the rank that reads the whole file", 6,
         "read_checkpoint(path, whole=rank == 0)", "read_checkpoint(path, whole=False)"),
    ],
    f"{RESUME}::test_the_same_line_again[07_dist_eval]": [
        ("tables of a run that has nothing left", 1, "    if evaluation and not stop:\n",
         "    if True:\n"),
    ],
    f"{RESUME}::test_order_of_saves": [
        ("best.pt first", 7,
         'best.pt")\n    save_checkpoint(state, args.output_dir / "checkpoint.pt")',
         'checkpoint.pt")\n    save_checkpoint(state, args.output_dir / "best.pt")'),
    ],
    f"{RESUME}::test_bit_for_bit[02_distributed-2-2]": [
        ("one writer", 6, "if rank == 0:  # [dist] one", "if True:  # one"),
        ("one log", 6, "open_log(args) if rank == 0 else None", "open_log(args)"),
    ],
    f"{RESUME}::test_the_best_survives_a_resume": [
        ("the best accuracy so far", 7, 'checkpoint.get("best")', "None"),
    ],
    f"{RESUME}::test_best_of_a_new_folder[02_distributed]": [
        ("a best of this run alone", 7, ' if args.resume == "" else None', ""),
        ("a best that is a plain number", 6, 'float(scores[BEST])', 'scores[BEST]'),
    ],
    f"{ERRORS}::test_refused[02_distributed-other_head]": [
        ("the model before the log", 7,
         "    raw_model = build_model(args, len(classes))\n",
         "    log(log_file, 'start', {})\n    raw_model = build_model(args, len(classes))\n"),
    ],
    f"{ERRORS}::test_refused[02_distributed-bomb]": [
        ("safe loading", 7, "weights_only=True", "weights_only=False"),
    ],
    f"{ERRORS}::test_refused[01_dataparallel-holds_another_run]": [
        ("the folder of a run that is not the one resumed", 7,
         'if holds_run and args.resume != "":', "if holds_run and args.resume is None:"),
    ],
    f"{ERRORS}::test_the_folder_stays_locked[02_distributed]": [
        ("the lock of a folder", 7, "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),
        ("a lock that nobody loses", 7, "        file.write(json",
         "        open(file.name).close()\n        file.write(json"),
    ],
    f"{ERRORS}::test_another_run_is_at_work": [
        ("an evaluation that needs no lock", 7, "    if args.evaluate:\n        return file\n", ""),
    ],
    f"{ERRORS}::test_the_lock_of_a_dead_node": [
        ("patience with a lock", 1, "if time.monotonic() > deadline:", "if True:"),
    ],
    f"{ERRORS}::test_fingerprint_of_an_own_data_set": [
        ("own data sets", 6, "dataset.samples if isinstance(dataset, ImageFolder) else []",
         "[(str(sample), 0) for sample in dataset.samples]"),
    ],
    f"{ERRORS}::test_machines_may_differ": [
        ("folders of another name", 6, "path.removeprefix(str(dataset.root))", "path"),
    ],
    "tests/faults/test_faults.py::test_parent_ends_too_early": [
        ("ranks that end with their parent", 1,
         "if not mp.parent_process().is_alive():", "if False:"),
    ],
    f"{ERRORS}::test_real_refusal_is_the_last_word[02_distributed]": [
        ("the line at the end of torchrun's report", 4,
         "errors.get_error_handler().record_exception(error)", "pass"),
    ],
    "tests/chapters/test_horovod.py::test_ranks_share_the_cores": [
        ("cores that ranks share", 1, "torch.set_num_threads(max(1, threads))", "pass"),
    ],
    f"{DATA}::test_unreadable_image[sixteen_bits-train-0]": [
        ("pictures that are not 8-bit RGB", 7, "if image.dtype != torch.uint8 or", "if False and"),
    ],
    f"{DATA}::test_unreadable_image[failing disk-train-1]": [
        ("the path of a file that cannot be read", 7, "except (OSError, RuntimeError, ValueError)",
         "except (RuntimeError, ValueError)"),
    ],
    IMAGES: [
        ("RGB, whatever the file holds", 7, "ImageReadMode.RGB)", "ImageReadMode.UNCHANGED)"),
        ("pictures of several frames", 7, " or image.ndim != 3", ""),
    ],
    f"{AMP}::test_overflow_by_a_huge_scale": [
        ("the scaler's update", 1, "        scaler.update()", "        pass"),
        ("momentum that a skipped first step leaves alone", 1,
         'if not kept and "momentum" in optimizer.defaults:', "if False:"),
    ],
    f"{AMP}::test_momentum_of_a_checkpoint": [
        ("momentum that fp16 would round to zero", 1,
         "torch.promote_types(weight.dtype, torch.float32)", "weight.dtype"),
    ],
    f"{AMP}::test_apex_in_fp32_is_native_in_fp32": [
        ("gradients that Apex's DDP would permute", 1,
         "model.to(device)  # not", "model.to(device, memory_format=torch.channels_last)  # not"),
    ],
    f"{AMP}::test_resume_across_kinds": [
        ("a scale of another kind", 1,
         "if scale.keys() == scaler.state_dict().keys():", "if scale:"),
        ("a level that scales nothing", 1,
         "dict(self.amp.state_dict()) if self.scales else {}", "dict(self.amp.state_dict())"),
    ],
    f"{RESUME}::test_any_chapter_resumes_any_other[01_dataparallel-05_horovod]": [
        ("momentum that Horovod can send", 1, "slot[name] = value.contiguous()", "pass"),
    ],
    f"{AMP}::test_clip[fp16]": [
        ("unscaling before clipping", 1,
         "            scaler.unscale_(optimizer)", "            pass"),
    ],
    f"{AMP}::test_types[fp16-1]": [
        ("the scaler in the checkpoint", 1, '"scaler": scaler.state_dict()', '"scaler": {}'),
    ],
    f"{EQUAL}::test_trains_as_one_process_would[05_horovod-2]": [
        ("clipping of averages by Horovod", 1, "optimizer.synchronize()  # [dist] waits",
         "pass  # waits"),
        ("Horovod's optimizer", 1,
         "return hvd.DistributedOptimizer(  # [dist]\n        optimizer,",
         "return (lambda bare, *_, **__: bare)(\n        optimizer,"),
        ("Horovod's broadcast of weights", 1,
         "hvd.broadcast_parameters(raw_model.state_dict(), root_rank=0)", "pass"),
    ],
    f"{EVAL}::test_every_count_is_exact[05_horovod-2]": [
        ("Horovod's sum", 1, "hvd.allreduce(totals, op=hvd.Sum)", "hvd.allreduce(totals)"),
        ("the result of Horovod's sum", 1, "top5, images = sums", "top5, images = totals"),
    ],
    f"{EVAL}::test_the_model_of_rank_0_is_evaluated[05_horovod-2]": [
        ("Horovod's broadcast of buffers", 1,
         "hvd.broadcast_parameters(buffers, root_rank=0)", "pass"),
    ],
    f"{RANKS}::test_ranks": [
        ("the processes in the rank", 1,
         'int(env["SLURM_PROCID"]) * procs', 'int(env["SLURM_PROCID"])'),
        ("a process for each GPU of a node", 1, "return max(1, gpus)", "return 1"),
        ("the first node", 1, 'env["MASTER_ADDR"] = nodes[0]', 'env["MASTER_ADDR"] = nodes[-1]'),
        ("the GPU of --gpus-per-task", 1,
         "if not 0 < torch.accelerator.device_count() <= procs:", "if True:"),
    ],
    f"{RANKS}::test_meeting_in_a_file": [
        ("the restart in the meeting file's name", 1, ', "SLURM_RESTART_COUNT"]', "]"),
    ],
    # What only a GPU would notice: the test has pretended ones.
    f"{ON_GPUS}::test_trains_as_one_process_would[02_distributed-2]": [
        ("targets on the GPU", 7, "targets.to(device, non_blocking=True)", "targets"),
        ("the mean of pixels on the GPU", 7, "torch.tensor(MEAN, device=device)",
         "torch.tensor(MEAN)"),
        ("sums of training on the GPU", 7,
         "torch.zeros(2, dtype=torch.float64, device=device)",
         "torch.zeros(2, dtype=torch.float64)"),
        ("sums of evaluation on the GPU", 6,
         "torch.zeros(4, dtype=torch.float64, device=device)",
         "torch.zeros(4, dtype=torch.float64)"),
        ("the model on the GPU", 5,
         "raw_model.to(device, memory_format=", "raw_model.to(memory_format="),
        ("nccl", 5, "dist.get_default_backend_for_device(device)", '"gloo"'),
        ("the current GPU", 6, "torch.accelerator.set_device_index(local_rank)", "pass"),
        ("the device that nccl is given", 5,
         'device_id=None if device.type == "cpu" else device,', ""),
        ("pinned memory", 7, '"pin_memory": torch.accelerator.is_available(),', ""),
        ("images that nobody waits for", 7, "images.to(device, non_blocking=True)",
         "images.to(device)"),
        ("steps in which nobody waits", 7,
         "totals[0] += loss.detach()", "totals[0] += loss.item()"),
    ],
    f"{ON_GPUS}::test_two_machines": [
        ("the number of a GPU on its machine", 6, "setup_device(local_rank)", "setup_device(rank)"),
    ],
    f"{ON_GPUS}::test_own_gpus_of_a_task": [
        ("the GPUs that a task sees", 1,
         "if not 0 < torch.accelerator.device_count() <= procs:", "if True:"),
    ],
    f"{ON_GPUS}::test_chosen_gpus": [
        ("the first of the chosen GPUs", 1, 'return torch.device("cuda", gpus[0])',
         'return torch.device("cuda", 0)'),
        ("the chosen GPU as the current one", 1, "torch.cuda.set_device(gpus[0])", "pass"),
    ],
    f"{ON_GPUS}::test_resumes[02_distributed]": [
        ("momentum on the GPU", 6, "optimizer.load_state_dict(state)",
         "optimizer.state.update(zip(model.parameters(), state['state'].values()))"),
        ("a checkpoint in the memory of the host", 7, 'map_location="cpu", ', ""),
    ],
    f"{ON_GPUS}::test_resumes[04_apex]": [
        ("momentum of fused SGD on the GPU", 1, "torch.empty_like(weight, dtype=dtype)",
         "torch.empty(weight.shape, dtype=dtype)"),
    ],
    f"{ON_GPUS}::test_types[02_distributed---bf16]": [
        ("autocast of the GPU", 6, "torch.autocast(device.type, torch.bfloat16,",
         'torch.autocast("cpu", torch.bfloat16,'),
        ("the type of autocast", 6, "torch.autocast(device.type, torch.bfloat16,",
         "torch.autocast(device.type,"),
    ],
    f"{ON_GPUS}::test_types[01_dataparallel---bf16]": [
        ("the type of autocast in threads", 1,
         "InBfloat16(model) if args.bf16 else model", "model"),
    ],
    f"{ON_GPUS}::test_types[04_apex---amp-dtype fp16]": [
        ("a step that does not wait for the scaler", 1,
         'fused = args.amp_dtype == "fp16"', "fused = False"),
        ("a step that the scaler takes", 1, "scaler.step(optimizer)", "optimizer.step()"),
    ],
    f"{ON_GPUS}::test_sync_bn[02_distributed]": [
        ("BatchNorm over all GPUs", 4,
         "nn.SyncBatchNorm.convert_sync_batchnorm(raw_model)", "raw_model"),
    ],
    f"{ON_GPUS}::test_evaluation": [
        ("predictions on the GPU", 1, "torch.zeros(0, 2 * k, dtype=torch.float64, device=device)",
         "torch.zeros(0, 2 * k, dtype=torch.float64)"),
        ("counts that come to the host", 1, "confusion.long().tolist()",
         "confusion.long().numpy().tolist()"),
    ],
    "tests/pretended/test_launches.py::test_torchrun": [
        ("the GPU set before memory is pinned", 5,
         "    device = setup_device(local_rank)\n    train_loader, val_loader = "
         "build_loaders(args, train_set, val_set, rank, world_size)\n",
         "    train_loader, val_loader = build_loaders(args, train_set, val_set, rank, "
         "world_size)\n    device = setup_device(local_rank)\n"),
    ],
    f"{GPU_CHECK}::test_what_becomes_of_a_part": [
        ("gpu_check sees what is left behind", 1, "        if left:", "        if False:"),
    ],
    f"{GPU_CHECK}::test_planted_fault": [
        ("gpu_check compares the weights", 1, "number < 1e-10 for", "number < 10 for"),
    ],
    f"{SEARCH}[en/]": [
        ("lunr's operators are none", 1, "e=words(e,this.index.invertedIndex)", "e=e"),
        ("exit codes", 1, "return `${part}^5`", "return part"),
        ("a word counts once", 1, "[...new Set(spaced.split(lunr.tokenizer.separator))]",
         "spaced.split(lunr.tokenizer.separator)"),
        ("pasted words are looked for alone", 1, "`${part}^1`", "part"),
        ("words that carry no question", 1, "!carriesNothing.has(part) && ", ""),
        ("what is said for what is typed", 1, "found.push(`${word}^2`)", "found.push()"),
        ("the index waits", 1, 'L(Je("search"),', "L($(!0),"),
    ],
    f"{SEARCH}[]": [
        ("questions in Chinese", 1, 'text.replace(questions, " ")', "text"),
        ("a page has no advantage over its section", 1, "let g=.4*", "let g=+"),
        ("text for which no key goes up", 1, 'new Event("keyup")', 'new Event("none")'),
        ("Chinese behind a word that the index does not have", 1, "to <= end) continue;",
         "to <= end) continue;\n    if (!(run.slice(start, to) in index)) break;"),
    ],
    f"{LINKS}::test_what_is_lost_is_named[one-size]": [
        ("the last number of a transfer", 1, "(buffer != wanted)",
         "(buffer[:-1] != wanted[:-1])"),
    ],
    f"{SITE}::test_on_paper": [
        ("whole lines on paper", 1, "@media print, screen and", "@media screen and"),
        ("dark letters on paper", 1, "@media screen {\n[data", "@media all {\n[data"),
    ],
    "tests/site/test_break_it.py::test_lines": [
        ("the address of what is chosen at home", 1,
         """output = output.replace('"navigation.tracking", ', "", 1)""", "pass"),
    ],
    f"{SITE}::test_on_a_phone": [
        ("room for the name of a column", 1, "float: left; width: 5.6rem; margin-left: -6.2rem;",
         "position: absolute; width: 5.6rem; margin-left: -6.2rem;"),
    ],
    f"{SITE}::test_contents_of_a_long_page": [
        ("contents beside convert", 1,
         'hide": ["navigation", "footer"]', 'hide": ["navigation", "toc", "footer"]'),
        ("steps in the row of contents", 1, "> ul:not(:has(> :nth-child(4))) :is(li, ul) {",
         "> ul:not(:has(> :nth-child(1))) :is(li, ul) {"),
    ],
    f"{SITE}::test_home_is_light": [
        ("figures stay on their pages", 1, 'if "data-figure" not in output:', "if False:"),
    ],
    f"{SITE}::test_a_chapter": [
        ("notes that stay above the next", 1, ".walk:not(:has(> :nth-child(3))) > *", ".walk > *"),
    ],
    "tests/site/test_pages.py::test_what_ran_where": [
        ("the way down to the results", 1, '"" if page == f"{language}/gpu.md" else "gpu.md"',
         '"gpu.md"'),
    ],
    f"{APPROACHES}::test_at_the_zoom_of_a_projector": [
        ("rows as cards at a projector", 1, "(min-width: 37.51em) and (max-width: 75.99em)",
         "(min-width: 37.51em) and (max-width: 40em)"),
        ("one program at a projector", 1, "@media (max-width: 76em) {\n  .ap fieldset",
         "@media (max-width: 40em) {\n  .ap fieldset"),
    ],
    f"{SITE}::test_from_disk": [
        ("the search from disk", 1,
         'config.extra["polyfills"] = ["assets/javascripts/from-disk.js"]', "pass"),
    ],
    f"{SITE}::test_what_a_chat_shows": [
        ("the name of the home page", 1, "config.site_name if home else page.title", "page.title"),
    ],
    f"{SITE}::test_links_to_files": [
        ("files that one language links to", 1, "def on_page_content(",
         "def on_pre_build(config: MkDocsConfig) -> None:\n    linked.clear()\n\n\n"
         "def on_page_content("),
    ],
    f"{SITE}::test_the_course_has_one_next": [
        ("one next page in the course", 1, '    "getting-started.md": {"hide": ["footer"]},\n', ""),
    ],
    f"{KILLED}[language_model-2-1-step 17-2]": [
        ("the random states of the ranks", 2,
         'set_random_state(checkpoint["random"][rank])', "pass"),
        ("batches that were trained on", 2, "before * ACCUMULATE, None", "0, None"),
    ],
    f"{TASKS}::test_is_on_the_disk": [
        ("a checkpoint on the disk", 6, "os.fsync(file.fileno())  # or", "pass  #"),
    ],
    f"{KILLED}[diffusion-2-0-save 2-3]": [
        ("the count of an average", 2, '"ema": ema,', '"ema": ema.module,'),
        ("a whole checkpoint", 2,
         'f"{CHECKPOINT}.tmp")\n        with open(f"{CHECKPOINT}.tmp", "rb") as file:\n'
         "            os.fsync(file.fileno())  # or a power cut leaves it empty\n"
         '        os.replace(f"{CHECKPOINT}.tmp", CHECKPOINT)',
         "CHECKPOINT)"),
    ],
    "tests/tools/test_toy_imagenet.py::test_killed": [
        ("workers that end with their parent", 1, '("spawn"), end_with_parent)', '("spawn"))'),
    ],
    "tests/tools/test_toy_imagenet.py::test_spread": [
        ("pictures that are easy", 1, "rng.uniform(-spread, spread, (2, 3))",
         "rng.uniform(-45, 45, (2, 3))"),
    ],
    "tests/tools/test_fits.py::test_by_hand": [
        ("the gradients that leave with a unit", 1, 'setattr(weight, "grad", None)', "None"),
        ("the unit that is gathered ahead", 1, "rest + 2 * largest", "rest + largest"),
        ("the copy for the optimizer's step", 1, 'sum(step), found["weights"])', "sum(step), 0)"),
    ],
    "tests/tools/test_fits.py::test_ranks_that_nobody_named": [
        ("more ranks, if few are not enough", 1, "MANY if few or not ranks else ()", "()"),
    ],
    "tests/tools/test_fits.py::test_uneven": [
        ("the rows that do not divide", 1, "math.ceil(count / parts)", "(count // parts)"),
    ],
    "tests/tools/test_skill.py::test_pages_are_whole": [
        ("the code of a page, for assistants, as it is", 1, 'if part["ticks"]:', "if False:"),
    ],
}
# fmt: on
