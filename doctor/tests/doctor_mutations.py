"""What keeps the doctor silent where it must be, and honest: each protection that might be lost in
silence, as a patch that takes it away, by the test that must then fail (mutate.py says how).

Not here: what a test would read, a finding: without the check such a test cannot be green.
"""

DOCTOR = "doctor/tests/test_doctor.py"
ENDINGS = "doctor/tests/test_endings.py"
PRINTED = "doctor/tests/test_printed.py"
PROBES = "doctor/tests/test_probes.py"
KINDS = "doctor/tests/test_right.py"
AGAINST = "doctor/tests/test_against.py"
DIVIDED = "doctor/tests/test_sharded.py::test_divided"
DRAWS = "doctor/tests/test_draws.py"
ORDER = f"{AGAINST}::test_order_of_the_first_run"
PROGRAM = "doctor/tests/test_programs.py::test_program"
INPUTS = "doctor/tests/test_inputs.py::test_two_runs"
PLACE = "doctor/tests/test_where.py::test_place"
KINDS_OF_PLACE = "doctor/tests/test_where.py::test_programs_of_other_kinds"
CASES = "doctor/tests/test_cases.py::test_case"
SPEED_FILE = "doctor/tests/test_speed.py"
SPEED = f"{SPEED_FILE}::test_what_is_said"
# By the test that notices them: what is lost, in how many files at least, and the patch.
# fmt: off
PATCHES: dict[str, list[tuple[str, int, str, str]]] = {
    f"{DOCTOR}::test_same_bits": [
        ("the doctor draws no random number", 1,
         "self.find_unhooked(parameters)", "torch.rand(1)"),
    ],
    f"{AGAINST}::test_names_where_runs_part[dropout-on-two-ranks-alone]": [
        ("no right twin has dropout alone", 1,
         "known[0] if all(layers) and len(known) == 1", '"" if layers'),
    ],
    f"{PLACE}[an-attention-mask-that-is-left-out]": [
        ("an argument that one run leaves out is another one", 1,
         'if lost and what == "given" else', "if False else"),
    ],
    f"{KINDS_OF_PLACE}[a-checkpoint-that-is-reentrant,-and-a-hook-in-it]": [
        ("what a checkpoint computes again has the gradients", 1, "if len(calls) == 1 and torch",
         "if False and torch"),
    ],
    f"{KINDS_OF_PLACE}[an-argument-that-one-run-alone-gives]": [
        ("an argument may be left out rightly", 1, "if not alone:\n                        return",
         "if True:\n                        return"),
    ],
    f"{KINDS_OF_PLACE}[arguments-by-name]": [
        ("a model is called by names, or not", 1,
         "bound = signature.bind(*args, **kwargs)", "raise TypeError"),
    ],
    f"{AGAINST}::test_gradients_of_rounding[a-bias-of-keys]": [
        ("Adam makes no step of rounding", 1, "gradients[n].zero_()", "pass"),
        ("small gradients are no rounding", 1, "LEAST = 1e-10 ", "LEAST = 1.0 "),
        ("a gradient of 0 is no rounding", 1, "if 0 < size < least", "if size < least"),
    ],
    f"{AGAINST}::test_weights_that_are_put_back[as-it-is]": [
        ("weights are put back", 1, "p.copy_(before)", "pass"),
    ],
    f"{AGAINST}::test_command_without_growth": [
        ("weights that are put back are trained", 1, '"untrained": "growth",', ""),
    ],
    f"{AGAINST}::test_gradients_of_rounding[a-bias-of-keys,-in-a-closure]": [
        ("a closure makes them, too", 1,
         "notes.call(probe, take_out, optimizer)\n                return loss", "return loss"),
    ],
    f"{AGAINST}::test_gradients_of_rounding[a-bias-of-keys,-in-a-float64-of-the-script's]": [
        ("a training is changed where --without says so alone", 1,
         'if not without("rounding")', "if False"),
    ],
    f"{DOCTOR}::test_processes_that_never_met": [
        ("processes of one launch without a group", 1,
         "one.apart = sum(bool(other.steps) for other in launched)", "pass"),
    ],
    f"{DIVIDED}[a-buffer-that-is-set,-and-was-so-by-chance]": [
        ("what to_empty leaves may be just what is right", 1, "MARK = 2.0**-9", "MARK = 0"),
    ],
    f"{DIVIDED}[a-parameter-that-nobody-has-set,-nor-used]": [
        ("a parameter that the model does not use", 1, " or tensor.grad is not None", " or True"),
    ],
    f"{PROGRAM}[a-mean-of-equal-means]": [
        ("means of equal parts are a mean", 1, "if len({*sizes}) > 1]", "if sizes]"),
    ],
    f"{PROGRAM}[as-it-is]": [
        ("reading what ranks add up", 1, 'figures.write("reduced", number, values)', "pass"),
        ("the doctor knows an evaluation", 1,
         "if one.steps or (begun and one.loader[\"id\"] in trained):", "if True:"),
    ],
    f"{PROGRAM}[a-reduced-loss-and-shares-that-nobody-adds-up]": [
        ("the loss of the next step is no sum of an evaluation", 1,
         "self.followed = self.since_step - self.training if", "self.followed = set() if"),
    ],
    f"{PROGRAM}[a-reduced-loss-and-no-shares]": [
        ("losses are reduced for a log", 1,
         'if window.wrapped and "reduce"', 'if not kind and "reduce"'),
    ],
    f"{PROGRAM}[gathered-losses-and-no-shares]": [
        ("losses are gathered for a log", 1,
         'if window.wrapped and "gather"', 'if not kind and "gather"'),
    ],
    f"{PROGRAM}[a-sum-that-equals-the-size]": [
        ("a rank counts its own share", 1,
         "if 0 <= min(left) and max(left) <= twice else set()", ""),
    ],
    f"{PROGRAM}[an-average-that-holds-the-model]": [
        ("DDP wraps the model that is trained", 1,
         "return isinstance(module, ddp), len", "return False, len"),
    ],
    f"{PROGRAM}[a-SyncBatchNorm-of-one's-own-and-no-shares]": [
        ("a SyncBatchNorm may be somebody's own", 1, "if norm or name ==", "if name =="),
    ],
    f"{PROGRAM}[an-optimizer-that-averages]": [
        ("an optimizer may average", 1,
         "if self.gradients and averages_inside(", "if False and averages_inside("),
    ],
    f"{PROGRAM}[a-wrapper-that-is-saved-and-copied]": [
        ("the doctor leaves nothing in a model", 1, "        window.wrapped.add(ddp)\n",
         "        window.wrapped.add(ddp)\n        ddp.seen = window\n"),
    ],
    f"{PROGRAM}[batches-that-each-rank-slices]": [
        ("ranks may slice what loaders give", 1, "least <= count < 0.75 * size", "False"),
    ],
    f"{PROGRAM}[one-order-under-a-wrapper-in-eval-mode]": [
        ("the wrapper's mode is not the model's", 1,
         'model = getattr(model, "module", model)', "pass"),
    ],
    f"{DIVIDED}[right]": [
        ("parts of a model are compared with their like", 1,
         "teams = replicas(ranks) if alike and not shared_out else []", "teams = [ranks]"),
    ],
    f"{DIVIDED}[a-score-of-each-rank's-own]": [
        ("what FSDP gathers adds up no score", 1,
         'elif kind == "collective" and not event["fsdp"]:', 'elif kind == "collective":'),
    ],
    f"{AGAINST}::test_words_under_fsdp[the-loss-of-rank-0,-of-divided-layers]": [
        ("what FSDP gathers tells nobody a loss", 1,
         'in self.events["collective"] if not event["fsdp"]]', 'in self.events["collective"]]'),
    ],
    f"{AGAINST}::test_names_where_runs_part[no-set_epoch-on-two-ranks,-of-batches-under-no_grad]": [
        ("a timer may ask for batches under no_grad", 1, "one.by_grad or one.line in self.lines",
         "one.by_grad"),
    ],
    f"{AGAINST}::test_names_where_runs_part[the-loss-of-rank-0,-of-batches-under-no_grad]": [
        ("the second batch shows that the first was trained on", 1,
         'and not rank.steps[0]["learned"]', "and False"),
    ],
    f"{AGAINST}::test_words_under_fsdp": [
        ("FSDP has words of its own", 1,
         "self.words[own if self.fsdp and own in self.words else name]", "self.words[name]"),
    ],
    f"{AGAINST}::test_ranks_that_share_samples[a-part-of-each-layer]": [
        ("parts of DTensors are put together", 1,
         'known = "FSDP" in self.of_model("wrappers") or self.divides()',
         'known = "FSDP" in self.of_model("wrappers")'),
        ("ranks that share samples have one batch", 1,
         "run.ranks if run.together else [team[0] for team in share]", "run.ranks"),
    ],
    f"{AGAINST}::test_ranks_that_share_samples[a-part-of-the-sequence]": [
        ("DTensor may have a gradient still to add up", 1,
         'if what in ("gradients", "unclipped"):', "if False:"),
    ],
    f"{AGAINST}::test_ranks_that_share_samples[by-hand]": [
        ("parts of tensors are left out, and the rest is compared", 1,
         "if shapes[0][name] != shapes[1][name]", "if False"),
    ],
    f"{PROGRAM}[shares-of-what-all-draw]": [
        ("all may draw one batch, and take shares of it", 1, "if takes_shares(ranks):",
         "if False:"),
    ],
    f"{KINDS}::test_nothing_to_say[rays]": [
        ("models may be given other parts of the same samples", 1,
         "if steps and all(map(cuts, ranks)):", "if False:"),
    ],
    f"{KINDS}::test_is_named[wrong_own_counter]": [
        ("weights may be averaged where ranks wait in vain", 1, "seen.parted and seen.stopped",
         "False"),
    ],
    f"{KINDS}::test_is_named[wrong_same_halves]": [
        ("models that are given the same part", 1,
         "if all(mine[step] == theirs[step] for step in steps):", "if False:"),
    ],
    f"{KINDS}::test_nothing_to_say[local_sgd_scaled]": [
        ("one rank may leave out a step of its own", 1,
         'if why := meant(STEPS, SimpleNamespace(ranks=ranks)):',
         'if why := "":'),
    ],
    f"{KINDS}::test_nothing_to_say[made_state]": [
        ("a step that only makes a state", 1, "(not closed and self.begins",
         "(closed and self.begins"),
    ],
    f"{KINDS}::test_nothing_to_say[two_models]": [
        ("a second model, of which ranks have parts", 1,
         " if not of_another(ranks[0], what, n) else []", ""),
    ],
    f"{AGAINST}::test_ranks_that_share_samples[parts-of-each-text]": [
        ("each rank of a team counts its targets", 1,
         "if not same and any(run.team > 1", "if False and any(run.team > 1"),
    ],
    f"{KINDS}::test_nothing_to_say[zero_by_hand]": [
        ("shares of an optimizer's own are no replicas", 1,
         "replicas(ranks) if alike and not shared_out else []", "replicas(ranks) if alike else []"),
        ("a flat share is of a model", 1, "model = model_in_parts(parameters)", "return"),
    ],
    f"{KINDS}::test_is_named[wrong_zero_by_tensors]": [
        ("the whole model is looked at, where an optimizer has a share", 1,
         "        if self.spread:\n", "        if False:\n"),
    ],
    f"{AGAINST}::test_ranks_that_share_samples[shares-of-the-optimizer]": [
        ("shares of an optimizer are put together", 1,
         "run.shared_out = divided_by_hand(ranks)", "run.shared_out = False"),
        ("a broadcast tells what one rank has", 1, ' and e["kind"] != "broadcast"]', "]"),
    ],
    f"{DIVIDED}[shares-that-are-filled-up]": [
        ("parts of a set may be filled up", 1,
         'min(sum(parts.values()), root)',
         'sum(parts.values())'),
    ],
    f"{DIVIDED}[tied-again]": [
        ("what is tied again is one", 1,
         " if len({id(tensor_at(place)) for place in tie}) > 1", ""),
    ],
    f"{DIVIDED}[clipped-by-value]": [
        ("what is clipped by value was not multiplied by one number", 1,
         "if found and max(found) - min(found) <= ALIKE * max(found):", "if found:"),
    ],
    f"{AGAINST}::test_files_without_weights": [
        ("a file without a tensor holds no weights", 1, "or is_bare(path)", ""),
        ("what has no tensors needs no counterpart", 1, ' and e["tensors"]}', "}"),
    ],
    f"{KINDS}::test_nothing_to_say[expert_parallel]": [
        ("experts have as many samples as come", 1, "(?<!to_all)(?<!toall)", ""),
    ],
    f"{KINDS}::test_is_named[wrong_fsdp_alike]": [
        ("FSDP gathers weights", 1, "or FSDP in name", ""),
    ],
    f"{PROGRAM}[a-group-of-one-rank-for-DDP]": [
        ("DDP in a group of one rank averages nothing", 1,
         'len(rank.model.get("group") or ()) == 1', "False"),
    ],
    f"{PROGRAM}[functional-collectives]": [
        ("functional collectives are seen", 1,
         "if not sys._getframe(1).f_code", "if sys._getframe(1).f_code"),
    ],
    f"{PROGRAM}[a-sweep-under-DDP]": [
        ("ranks may train models of their own under DDP", 1,
         "and not averages_nothing(rank) for rank in ranks", "for rank in ranks"),
    ],
    f"{PROGRAM}[a-share-in-collate_fn]": [
        ("places in a range may be of a rank's own", 1,
         'not common or one.loader["described"]', "True"),
    ],
    f"{DOCTOR}::test_compiled_collectives": [
        ("functional collectives can be compiled", 1,
         "if torch.compiler.is_compiling():\n                return",
         "if False:\n                return"),
    ],
    f"{PROGRAM}[a-list-of-samples-for-an-index]": [
        ("an index may stand for several samples", 1, 'str(key)[0] in "(["', "False"),
    ],
    f"{PROGRAM}[a-pass-of-no-batches]": [
        ("an evaluation of nothing is none", 1, "return bool(self.batches) and", "return"),
    ],
    f"{PROGRAM}[unequal-shares,-averaged-after-each]": [
        ("only ranks that hear of each other hang", 1, "if alone_in(ranks, passes):", "if False:"),
        ("the doctor knows local SGD", 1,
         'return averages_weights(seen.ranks)',
         'return False'),
    ],
    f"{PROGRAM}[a-part-that-each-rank-weighs]": [
        ("a loss may be weighed by what is no count", 1, "abs(by - round(by)) < 1e-3", "True"),
    ],
    f"{PROGRAM}[own-means,-weighed]": [
        ("means may be weighed by their counts", 1, "map(prod, zip(", "map(max, zip("),
    ],
    f"{PROGRAM}[a-sum-by-the-count-of-all]": [
        ("a sum is no mean", 1, '"total_weight") if mean else 1', '"total_weight")'),
    ],
    f"{PROGRAM}[a-few-targets-that-do-not-count]": [
        ("counts of some steps may be unlike", 1, "median(one for", "max(one for"),
    ],
    f"{PROGRAM}[gradients-that-counts-weigh]": [
        ("gradients may be weighed by their counts", 1,
         'for step in rank.steps if step["averaged"]}', "for step in rank.steps}"),
    ],
    f"{PROGRAM}[a-count-that-a-checkpoint-would-make]": [
        ("the doctor makes no checkpoint's forward pass", 1, "if hook or hasattr(", "if hasattr("),
    ],
    f"{AGAINST}::test_names_where_runs_part[targets-that-are-drawn]": [
        ("targets of a step may be drawn", 1, "if not (found or any(", "if not (any("),
    ],
    f"{AGAINST}::test_names_where_runs_part[targets-that-a-collate_fn-draws,-beside-dropout]": [
        ("targets of a batch may be drawn", 1, "found or any(one.drawn for one in self.batches)",
         "found"),
    ],
    f"{PROGRAM}[a-loader-that-is-let-go]": [
        ("the doctor keeps no loader", 1, "self.in_order = getattr", "self.kept = loader\n"
         "        self.in_order = getattr"),
    ],
    f"{PROBES}::test_without[collectives]": [
        ("the doctor needs collectives", 1, 'indices collectives files save printed"',
         'indices files"'),
    ],
    f"{PROBES}::test_each_is_attached_by_itself": [
        ("probes are attached one by one", 1,
         "notes.fail(probe.name, probe.target, missing=True)", "raise"),
    ],
    f"{PROBES}::test_status_of_a_run_that_lacks_a_probe": [
        ("a run that is not checked is not green", 1, "sys.exit(3 if report.blocked or",
         "sys.exit(0 if report.blocked or"),
    ],
    f"{KINDS}::test_nothing_to_say[tensor_parallel_by_hand]": [
        ("ranks exchange activations", 1, "found := exchanges(ranks, FEW)", "found := []"),
    ],
    f"{KINDS}::test_nothing_to_say[grpo]": [
        ("ranks tell each other rewards", 1,
         "any(len(set(group) & team) > 1 for group in of_ddp for team in teams)", "False"),
    ],
    f"{KINDS}::test_nothing_to_say[views_added_up]": [
        ("views are added up", 1,
         'return seen.largest >= seen.size',
         'return False'),
    ],
    f"{KINDS}::test_nothing_to_say[batches_under_no_grad]": [
        ("batches may be asked for under no_grad", 1,
         "one.by_grad or one in self.given_before", "one.by_grad"),
    ],
    f"{KINDS}::test_nothing_to_say[zero_of_torch]": [
        ("the scheduler of an optimizer around another one", 1,
         "self.outer = optimizer.param_groups if self.done else self.outer", "pass"),
    ],
    f"{KINDS}::test_nothing_to_say[results_by_files]": [
        ("results are joined by files", 1,
         "if all(wrote) and not set.intersection(*wrote):", "if False:"),
    ],
    f"{KINDS}::test_nothing_to_say[last_pass]": [
        ("a begun pass is the last of a training loader", 1,
         "begun = one is last and", "begun = one is passes[-1] and"),
    ],
    f"{KINDS}::test_nothing_to_say[divided_classes_of_one_seed]": [
        ("parameters that are in no DDP model", 1,
         'bool(seen.begun or seen.beside)',
         'bool(seen.begun)'),
    ],
    f"{PROGRAM}[a-mean-of-means]": [
        ("an evaluation is checked by its number of samples", 1,
         "if seen.size in counted(seen.phase, 0):", "if seen.reduced:"),
    ],
    f"{DRAWS}::test_matched[2-contiguous-shares]": [
        ("numbers belong to samples, however they are shared", 1,
         "who = who or [rank + world * (before", "who = [rank + world * (before"),
    ],
    f"{DRAWS}::test_matched[2-all-forms]": [
        ("what the first run drew tells which draws are of samples", 1,
         "            if noted and noted[3] != per:", "            if False:"),
    ],
    f"{DRAWS}::test_matched[2-a-reentrant-checkpoint]": [
        ("what is drawn once more in a backward pass", 1, "nullcontext() if on else draws",
         "nullcontext()"),
        ("a recomputation gets the numbers of the forward pass", 1,
         "        key = torch.initial_seed()\n", "        key = mix(self.step, len(self.calls))\n"),
    ],
    f"{DRAWS}::test_matched[2-a-loader-that-fetches-ahead]": [
        ("numbers are of the batch that is trained on", 1,
         "self.ahead = len(self.batches) == 2", "self.ahead = 0"),
    ],
    f"{DRAWS}::test_what_cannot_be_matched[rows-in-another-order-than-the-indices]": [
        ("rows that a collate_fn has sorted are nobody's for sure", 1,
         "            self.ordered &= all(same_item(a[1:]", "            all(same_item(a[1:]"),
    ],
    f"{DRAWS}::test_what_cannot_be_matched[compiled]": [
        ("what compiled code draws is named", 1, "or min(a[PER], b[PER]) < 0", ""),
    ],
    f"{DRAWS}::test_what_cannot_be_matched[a-generator-of-the-rank]": [
        ("generators of the script's own are compared", 1, " or a[SOURCE] != b[SOURCE]", ""),
    ],
    f"{DRAWS}::test_no_loader_and_no_match[inside]": [
        ("without a loader, whose a row is was taken for granted", 1,
         "bool(found) or inputs.same_turns(*self.runs, n)", "True"),
    ],
    f"{DRAWS}::test_data_sets_draw_as_ever[0]": [
        ("data sets draw from the script's own stream", 1, "not in self.seeded:", "is None:"),
    ],
    f"{DRAWS}::test_a_lost_gradient_is_found_beside_it": [
        ("a mode of the doctor does not keep another one off", 1,
         'all(hasattr(mode, "of_doctor") for mode in MODES[0]())', "not MODES[0]()"),
        ("a mode below another one is taken off", 1,
         "if self not in modes:", "if self not in modes[-1:]:"),
    ],
    f"{AGAINST}::test_accuses_no_right_program": [
        ("ranks that join make unequal numbers of steps", 1, "if unequal and not joined and",
         "if unequal and"),
    ],
    f"{AGAINST}::test_nothing_differs[2-as-it-is]": [
        ("samples of all ranks together", 1,
         "return sum(self.of_ranks(n), Counter())", "return self.of_ranks(n)[0]"),
    ],
    f"{AGAINST}::test_accuses_no_right_program[two_models-1-2]": [
        ("a model in parts may follow a whole one", 1,
         "if len(made) > 1 and before", "if False and before"),
    ],
    f"{AGAINST}::test_names_where_runs_part[a-batch-that-nobody-shares-out]": [
        ("all ranks have the samples of one", 1, "if all(keys == a for keys in each)", "if False"),
    ],
    f"{AGAINST}::test_nothing_differs[2-batches-that-are-taken-and-skipped]": [
        ("batches that are skipped are no step's", 1, "if ahead else count - 1", "if True else 0"),
    ],
    f"{AGAINST}::test_nothing_differs[2-an-epoch-that-ends-early,-of-what-is-fetched-ahead]": [
        ("batches that are fetched ahead", 1, "read_alike(*self.batches)", "pass"),
    ],
    f"{AGAINST}::test_nothing_differs[2-times-with-their-means]": [
        ("the mean behind a time", 1, "(?:\\s*\\(\\s*{NUMBER}\\s*\\))?|", "|"),
    ],
    f"{AGAINST}::test_names_where_runs_part[a-drawn-brightness-of-images-that-have-masks]": [
        ("all tensors of a batch", 1, "else items + sums", "else items"),
    ],
    f"{AGAINST}::test_names_where_runs_part[one-loss-of-the-22nd-step]": [
        ("each step of two runs", 1, "ALL_OF_TWO if compares()", "ALL_UNTIL if compares()"),
    ],
    f"{AGAINST}::test_names_where_runs_part[gathered-scores-without-their-gradient]": [
        ("each rank may count all targets", 1, "same = b in (a, a * each)", "same = b == a"),
        ("a gradient that a gather cuts off", 1, "and gathered(ratios, 1 / worlds)", "and False"),
    ],
    f"{AGAINST}::test_which_steps_were_compared": [
        ("weights after the last step", 1, "self.compare_weights(steps + 1, over=True)", "pass"),
    ],
    f"{AGAINST}::test_a_run_that_was_resumed[as-it-is]": [
        ("where a run goes on is found", 1, "one.begun = self.one.after(",
         "one.begun = 0 * self.one.after("),
        ("steps are counted from there", 1, "get(self.run.begun + n, {})", "get(n, {})"),
        ("what was saved before a checkpoint", 1, "0 if run.begun else -1", "-1"),
        ("lines before a checkpoint", 1, 'event["place"] - run.begun\n        late',
         'event["place"]\n        late'),
    ],
    f"{AGAINST}::test_a_run_that_was_resumed[momentum-lost]": [
        ("the state of an optimizer", 1, "note_state(optimizer, self.steps)", "pass"),
    ],
    f"{AGAINST}::test_a_run_that_was_resumed[epochs-that-are-counted-anew]": [
        ("samples of an earlier epoch", 1, "(earlier := self.batches[0].earlier(b))",
         "(earlier := 0)"),
    ],
    f"{AGAINST}::test_a_run_that_was_resumed[in-the-order-of-the-first-run]": [
        ("an order that is of the beginning", 1,
         "if known and of_beginning & set(self.without)", "if False"),
    ],
    f"{AGAINST}::test_a_run_that_failed": [
        ("a run that failed is not the same", 1, "if self.report.broken:", "if False:"),
    ],
    f"{AGAINST}::test_a_probe_that_no_comparison_needs": [
        ("what a comparison needs is a list", 1, "if probe in needs} - unasked", "} - unasked"),
    ],
    f"{AGAINST}::test_a_probe_that_is_missing": [
        ("what a run has not recorded is not compared", 1, "self.find_trouble()", "pass"),
    ],
    f"{AGAINST}::test_a_folder_of_distributed_checkpoint": [
        ("a file of one run for a folder of the other", 1, "both.append((one[0] + BOTH",
         "len((one[0] + BOTH"),
    ],
    f"{AGAINST}::test_lines_of_one_process": [
        ("one process has no share", 1, "in each if run.first.world > 1)", "in each)"),
    ],
    f"{AGAINST}::test_figures_that_are_no_numbers": [
        ("figures that are no numbers", 1, "if all(map(math.isfinite, found))", "if True"),
    ],
    f"{KINDS}::test_nothing_to_say[resume_that_skips]": [
        ("a resume goes back on purpose", 1, "if not begins_anew(rank, *pair)", "if True"),
    ],
    f"{KINDS}::test_nothing_to_say[resume_in_place]": [
        ("an optimizer that is restored", 1, 'notes.event("restored")', "pass"),
    ],
    f"{KINDS}::test_nothing_to_say[users_of_a_list]": [
        ("the data set that is iterated", 1, "loader._doctor_made = user_line(loader)",
         "self.new_loader(loader, loader.dataset)"),
    ],
    f"{KINDS}::test_nothing_to_say[own_part]": [
        ("a rank's own part is no whole gradient", 1, 'elif not report.has("lost_gradient"):',
         "elif False:"),
    ],
    f"{DOCTOR}::test_the_second_line_is_looked_at_first": [
        ("the second launch line", 1, "        check_line(line, report.say)\n", "        pass\n"),
    ],
    f"{AGAINST}::test_nothing_differs[2-a-weight-without-a-gradient]": [
        ("steps of nothing are no difference", 1, "if other and share < SHARE:", "if False:"),
    ],
    f"{AGAINST}::test_nothing_differs[2-a-model-that-is-a-part-of-another-one]": [
        ("names of a model inside another one", 1, "        name_alike(*self.runs)\n", ""),
    ],
    f"{AGAINST}::test_nothing_differs[2-a-step-with-a-closure]": [
        ("gradients that a closure makes", 1, "closed = any(map(callable,",
         "closed = False and any(map(callable,"),
    ],
    f"{AGAINST}::test_nothing_differs[2-a-setting-as-another-type-of-number]": [
        ("0 is 0.0", 1, "float(v) if type(v) is int else v", "v"),
    ],
    f"{AGAINST}::test_names_where_runs_part[what-rank-0-prints-between-its-batches]": [
        ("what is printed between batches is no result", 1,
         'if latest and line["row"] < latest.over:', "if False:"),
        ("rank 0 may print what it has told nobody", 1,
         'if not any(event["row"] >= since for event in called):', "if False:"),
    ],
    f"{AGAINST}::test_names_where_runs_part[the-loss-of-rank-0-beside-that-of-all]": [
        ("rank 0 may print what it has told the others", 1,
         "[value for row in rows for value in row] + means", "[]"),
    ],
    f"{AGAINST}::test_nothing_differs[2-names-and-dates]": [
        ("numbers in names are no results", 1, '"~" if named or', '"~" if False and'),
        ("the number of a run is no result", 1, "|v_num", ""),
    ],
    f"{AGAINST}::test_nothing_differs[2-a-restart]": [
        ("an optimizer that takes another one's place", 1,
         "next((n for n, old in alike if old() is None), None)", "None"),
    ],
    f"{AGAINST}::test_names_where_runs_part[an-exponent]": [
        ("the last digit of a number with an exponent", 1, "1e{exponent or 0}", "1e0"),
    ],
    f"{AGAINST}::test_names_where_runs_part[other-frozen-weights]": [
        ("frozen weights of two runs", 1, "if least < apart(a[name], b[name])", "if False"),
    ],
    f"{AGAINST}::test_names_where_runs_part[another-average-in-the-model]": [
        ("what no optimizer changes, at the end", 1, "self.compare_fixed()", "pass"),
    ],
    f"{AGAINST}::test_names_where_runs_part[half-of-the-weights,-by-safetensors]": [
        ("tensors of files that a run leaves", 1, 'found[one["name"], step] =', "_ ="),
    ],
    f"{AGAINST}::test_names_where_runs_part[half-of-the-weights,-from-memory]": [
        ("files of torch.save, from memory", 1, 'elif begins[:2] == b"PK":', "elif False:"),
    ],
    f"{AGAINST}::test_names_where_runs_part[half-of-the-weights,-in-a-folder]": [
        ("folders of torch.distributed.checkpoint", 1, "yield from put_together(path)", "return"),
    ],
    f"{AGAINST}::test_names_where_runs_part[what-rank-0-has-of-them]": [
        ("shapes of saved tensors", 1, "if a[name][2] != b[name][2]]", "if False]"),
    ],
    f"{AGAINST}::test_names_where_runs_part[a-file-of-each-rank]": [
        ("parts in files of each rank", 1, "parts or of_ranks(", "parts and of_ranks("),
    ],
    f"{AGAINST}::test_names_where_runs_part[a-file-of-each-rank,-in-a-folder-of-its-own]": [
        ("parts in folders of each rank", 1, 'parts = one["parts"] or other["parts"]',
         "parts = False"),
    ],
    "doctor/tests/test_tensors.py::test_a_pickle_runs_nothing": [
        ("no class is imported", 1, "return type(name, (Box,), {})",
         "return super().find_class(module, name)"),
    ],
    "doctor/tests/test_tensors.py::test_tensors_in_files": [
        ("pickles", 1, 'elif begins[:1] == b"\\x80":', "elif False:"),
        ("pickle inside pickle", 1, 'if name == "_load_from_bytes":', "if False:"),
        ("arrays beside tensors", 1, "obj = torch.tensor(obj)", "pass"),
        ("moments that lie deep", 1, "depth < DEEPEST", "depth < 4"),
    ],
    "doctor/tests/test_tensors.py::test_pieces_of_ranks": [
        ("where a piece lies", 1, "slice(start, start + size)", "slice(0, size)"),
        ("what a rank has of a tensor", 1, "return own[0] if own else", "return"),
    ],
    f"{PROGRAM}[a-score-of-rank-0's-share]": [
        ("a score beside a sum", 1, "if numbers := own_scores(ranks, seen.phase[0][0]):",
         "if False:"),
        ("lines of an evaluation", 1, "(window.given and", "(False and"),
    ],
    f"{PROGRAM}[a-score-of-all]": [
        ("a percentage is made of sums", 1, "(p, 100 * p, 1 - p,", "(p, 1 - p,"),
        ("a rate, and the loss of training", 1, "not re.match(OTHER, word)", "True"),
    ],
    f"{PROGRAM}[a-picture-by-every-rank]": [
        ("a library that was given the path", 1, "foreign and not was_given(full, called.f_locals)",
         "foreign"),
    ],
    f"{PROGRAM}[a-file-that-nobody-was-seen-to-write]": [
        ("files that nobody was seen to write", 1, 'if not (e["seen"] or e["text"])', "if False"),
    ],
    f"{PROGRAM}[a-summed-loss,-times-the-ranks]": [
        ("a loss that is multiplied by the ranks is divided by them once", 1,
         "return (by * world == 1) - (by == world)", "return 0"),
    ],
    f"{PROGRAM}[accumulated]": [
        ("samples that come again as they were", 1, "if now.stale and len", "if len"),
    ],
    f"{PROGRAM}[accumulated-in-a-place-of-one's-own]": [
        ("gradients that are kept elsewhere", 1, "return thrown if self.left == self.now() else 0",
         "return thrown"),
    ],
    f"{PROGRAM}[rows-of-unlike-lengths,-and-one-seed]": [
        ("random numbers before the first forward pass", 1, "((begun, made), (made, later))",
         "((made, later),)"),
    ],
    f"{PROGRAM}[a-critic,-and-one-seed]": [
        ("whole iterations of several optimizers", 1,
         's["optimizer"] == steps[0]["optimizer"]', "True"),
    ],
    f"{PROGRAM}[a-schedule-that-ends-half-way]": [
        ("a schedule whose end was not seen", 1, "and rates[-1] > LOW * max(rates)", "and False"),
    ],
    f"{AGAINST}::test_nothing_differs[2-a-bar]": [
        ("the batches of a bar are no result", 1, 'rf"{BAR}|"', '""'),
        ("which bar it is", 1, "bar.start()] if bar", "0] if bar"),
        ("a bar that is not full", 1, 'bar[1] != "100"', "False"),
    ],
    f"{DOCTOR}::test_advice_fits": [
        ("gradients that are to be added up", 1, '"added" if first.model.get("together") else',
         ""),
        ("files of parts", 1, "if parts else", "if False else"),
        ("a scheduler that one rank steps", 1, 'if "fewer" in found', "if False"),
    ],
    f"{AGAINST}::test_names_where_runs_part[another-seed]": [
        ("first weights of two runs", 1, "> least]", "> 9]"),
    ],
    f"{AGAINST}::test_names_where_runs_part[an-evaluation-that-counts-twice]": [
        ("what the verdict on B accuses is not A's", 1,
         "if not sure or rank.world", "if rank.world"),
    ],
    f"{AGAINST}::test_names_where_runs_part[another-eps]": [
        ("settings of two optimizers", 1, "self.compare_options(number, number)", "pass"),
    ],
    f"{AGAINST}::test_names_where_runs_part[a-schedule-of-another-length]": [
        ("rates of two runs", 1, "self.compare_rates(n)", "pass"),
    ],
    f"{AGAINST}::test_names_where_runs_part[other-targets]": [
        ("nothing is compared behind the first difference", 1, "raise Parted", "pass"),
    ],
    f"{AGAINST}::test_names_where_runs_part[other-contents]": [
        ("contents of equal samples", 1, "or self.compare_contents(n, mine, theirs)",
         "or True"),
    ],
    f"{AGAINST}::test_names_where_runs_part[loss-times-the-number-of-ranks]": [
        ("gradients of two runs", 1, "self.compare_gradients(n)", "pass"),
    ],
    f"{AGAINST}::test_names_where_runs_part[loss-times-the-number-of-ranks,-then-clipped]": [
        ("gradients before the script clips them", 1,
         'figures.write("unclipped", self.steps, torch.stack(rows))', "pass"),
    ],
    f"{AGAINST}::test_names_where_runs_part[another-limit-of-the-norm]": [
        ("gradients behind the clipping", 1, ', ("clipped", "gradients")):', ",):"),
    ],
    f"{AGAINST}::test_nothing_differs[2-a-norm-for-the-log]": [
        ("a rank may look at the norm of its own gradients", 1,
         "any(run.clips_own(n) for run in self.runs)", "False"),
    ],
    f"{AGAINST}::test_names_where_runs_part[a-rule-that-changes-weights-on-each-rank]": [
        ("weights after a step of two runs", 1, "self.compare_weights(n)", "pass"),
    ],
    f"{AGAINST}::test_names_where_runs_part[BatchNorm]": [
        ("BatchNorm is a known cause", 1, "        if norms:\n", "        if False:\n"),
    ],
    f"{AGAINST}::test_names_where_runs_part[an-average-that-begins-late]": [
        ("what two runs save", 1, "self.compare_saved()", "pass"),
        ("a saved file that is renamed when it is whole", 1,
         'moved.get(event["path"], event["path"])', 'event["path"]'),
    ],
    f"{AGAINST}::test_names_where_runs_part[another-file]": [
        ("files of one run alone", 1, "        self.compare_names(mine", "        len(mine"),
    ],
    f"{AGAINST}::test_numbers_beside_tensors": [
        ("numbers in saved files", 1, "        self.compare_numbers(both)", "        pass"),
    ],
    f"{AGAINST}::test_names_where_runs_part[the-accuracy-of-rank-0's-share]": [
        ("a score is not of rank 0's training", 1,
         "    elif any(one.place ==", "    elif False and any(one.place =="),
    ],
    f"{AGAINST}::test_names_where_runs_part[the-loss-of-rank-0]": [
        ("rank 0 may print a loss of its own", 1, "re.search(OF_TRAINING, before)", "False"),
    ],
    f"{AGAINST}::test_without[False]": [
        ("the first run's order", 1, 'if not without("shuffling") or', "if True or"),
        ("no statistics of a batch in two runs", 1, 'return without("batchnorm") and',
         "return False and"),
        ("no dropout in two runs", 1, 'return images if without("dropout") else',
         "return images if False else"),
    ],
    f"{AGAINST}::test_nothing_differs[2-a-layer-that-is-whole-beside-parts,-averaged]": [
        ("in how many parts a tensor is", 1, "math.sqrt(len(row) / count)", "math.sqrt(len(row))"),
        ("the state of a part is no other state", 1, "or (parts and len(worlds) > 1)", ""),
    ],
    f"{DIVIDED}[lora-after,-frozen]": [
        ("gradients of layers that are added after fully_shard", 1,
         "if values := drift_of_whole(ranks) if sharded else None:", "if values := None:"),
    ],
    f"{KINDS}::test_nothing_to_say[experts_beside_parts]": [
        ("experts train on samples of their own", 1, "if not exchanges(ranks, FEW) else []", ""),
    ],
    f"{AGAINST}::test_weights_that_cannot_be_float64": [
        ("weights in 4 bits are loaded before anything is seen", 1,
         'if status and not job.ended and "rounding"', 'if job.ended and "rounding"'),
    ],
    f"{AGAINST}::test_command": [
        ("a softmax in float64", 1, "(torch, SOFTMAX)", "(torch, ())"),
        ("float64 in two runs", 1, "torch.set_default_dtype(torch.float64)", "pass"),
        ("types that the script asks for, in two runs", 1, '("to", "type", *SOFTMAX)',
         "SOFTMAX"),
        ("no GradScaler in two runs", 1, "(torch.autocast, torch.amp.GradScaler)",
         "(torch.autocast,)"),
    ],
    f"{KINDS}::test_nothing_to_say[dataset_readers]": [
        ("settings of a data set are no numbering", 1, "if type(number) is int}", "}"),
    ],
    f"{KINDS}::test_nothing_to_say[scheduler_by_design]": [
        ("a schedule may count the steps of all ranks", 1,
         "(over or 0 < length < 0.9 * places[-1]):", "True:"),
    ],
    f"{PROGRAM}[one-image-repeated]": [
        ("the doctor forgives padding", 1, "else len(passes) - 1", "else 0"),
    ],
    f"{PROGRAM}[files-divided-by-rank]": [
        ("the doctor compares what is in the items", 1,
         "if any(mine[key] != theirs[key] for key in targets):", "return True\n    if False:"),
        ("an index may be another file on each rank", 1, "if others and not known:", "if False:"),
        ("a name that comes again numbers nothing", 1, "if len({name for name, _ in pairs}) <",
         "if 0 and len({name for name, _ in pairs}) <"),
    ],
    f"{PROGRAM}[a-share-inside-a-data-set]": [
        ("a data set may hold another one", 1, "elif depth and is_dataset(", "elif False and ("),
    ],
    f"{KINDS}::test_is_named[wrong_contrast]": [
        ("who gathers features has samples of its own", 1,
         '    if report.teams.together:\n        sharing = "together"\n',
         '    if report.teams.together or report.teams.exchange:\n'
         '        sharing = "together"\n'),
    ],
    f"{KINDS}::test_is_named[wrong_vote]": [
        ("a vote is no score", 1, "all(map(is_flag, self.reduced))", "not self.reduced"),
    ],
    f"{DOCTOR}::test_loaders_of_accelerate": [
        ("the doctor knows accelerate's loaders", 1,
         'return any(type(part).__module__.startswith("accelerate.") for part in parts)',
         'return "accelerate" in __import__("sys").modules'),
    ],
    f"{DOCTOR}::test_counts_of_an_evaluation": [
        ("a number of one batch is no count", 1, 'if event["t"] >= last:', "if True:"),
        ("counts may come batch by batch", 1, "place] += value", "place] = value"),
    ],
    f"{DOCTOR}::test_two_findings_about_files": [
        ("a shared file hides no wrapped keys", 1,
         '        report.find(name, at, mild,',
         '        return report.find(name, at, mild,'),
    ],
    f"{DOCTOR}::test_rows_that_are_no_items": [
        ("a batch may have rows that are no items", 1,
         "or not count or len(tensor) != count", "or not count"),
    ],
    f"{DOCTOR}::test_what_a_batch_tells": [
        ("the doctor tells images from their objects", 1, "if dicts and (", "if False and ("),
        ("a batch may have no rows", 1,
         "not count or len(tensor) != count", "len(tensor) != count"),
    ],
    f"{KINDS}::test_nothing_to_say[infinite_loader]": [
        ("shares of an endless pass are not checked", 1,
         "        report.skip(\"overlapping_samples\", why)\n    elif", "        pass\n    elif"),
        ("one pass may have several epochs", 1, "any(has_epochs(one, len(ranks))", "any(False"),
    ],
    f"{KINDS}::test_nothing_to_say[normalizer]": [
        ("statistics may be put together now and then", 1, "and not merges(ranks[0])", ""),
    ],
    f"{KINDS}::test_is_named[wrong_average]": [
        ("an average of the weights may differ", 1, 'copy = what == "beside" and',
         'copy = what == "" and'),
    ],
    f"{KINDS}::test_nothing_to_say[fresh_mixing]": [
        ("weights may be drawn anew", 1, "all(stay(rank, what) for rank in ranks)",
         "True"),
    ],
    f"{KINDS}::test_nothing_to_say[resume_at_end]": [
        ("a finished epoch has no rest", 1, 'mild = loader["id"] not in given', "mild = False"),
    ],
    f"{PROGRAM}[joined-over-unequal-shares]": [
        ("the doctor knows Join", 1, 'notes.event("join")', "None"),
    ],
    f"{PROGRAM}[accumulated,-averaged-at-the-end]": [
        ("DDP may be told not to average", 1,
         'getattr(ddp, "require_forward_param_sync", False)', "True"),
    ],
    f"{PROGRAM}[two-losses-of-a-batch]": [
        ("several losses of a batch are no accumulation", 1, "sum(rows) == given", "True"),
    ],
    f"{PROGRAM}[two-losses-of-a-forward-pass]": [
        ("losses of a forward pass are no accumulation", 1, "len(rows) >= sum(averaged)", "True"),
    ],
    f"{CASES}[fsdp2_late_wrap]": [
        ("the doctor reads no freed memory", 1,
         "values.untyped_storage().size() < values.numel()", "False"),
    ],
    f"{CASES}[lightning_augmentation]": [
        ("the doctor compares streams, not seeds", 1, "state[8:] if len(state) > 16", "state[0:]"
         " if len(state) > 16"),
    ],
    f"{DOCTOR}::test_hang[--still]": [
        ("a job stands still from its last event on", 1, "moved + still", "moved - still"),
        ("the doctor names what a rank waits in", 1,
         'if function == "wrapper" or name.startswith(HERE) else', "if False else"),
    ],
    f"{DOCTOR}::test_ctrl_c": [
        ("what the doctor ends is quiet", 1, "(self.traces / ENDED).touch()", "pass"),
    ],
    f"{ENDINGS}::test_a_full_disk[1]": [
        ("a recorder that has to stop shows it", 1, "            self.stop(error)\n",
         "            self.active = False\n"),
    ],
    f"{ENDINGS}::test_the_last_word[left]": [
        ("a process that leaves by os._exit has ended", 1,
         'hook(probe, os, "_exit", note_end)', "None"),
    ],
    f"{ENDINGS}::test_waits_for_threads_of_gloo": [
        ("gloo's threads end before Python does", 1, "    if notes.pid in MET:", "    if False:"),
        ("who was in a group is known", 1, "MET.append(notes.pid)", "pass"),
    ],
    f"{ENDINGS}::test_a_crash_of_its_own": [
        ("a crash of the doctor is no verdict", 1,
         'fail("this is a mistake of its own, and no verdict")', "raise"),
    ],
    f"{ENDINGS}::test_a_doctor_that_is_killed": [
        ("a doctor that is killed ends its job", 1, "if OVER not in told:", "if False:"),
    ],
    f"{ENDINGS}::test_a_number_of_the_scripts[taken]": [
        ("a number that is another file's by now", 1, "if self.marked() != self.mark:",
         "if self.marked() is None:"),
    ],
    f"{ENDINGS}::test_a_script_that_tidies_up": [
        ("the environment as it was at the start", 1, "attach(name, TOLD)",
         "attach(name, dict(os.environ))"),
        ("the recorder without sys.path", 1, 'if name == "_doctor":', "if False:"),
        ("words of sys.argv that are none", 1, "[str(word) for word in getattr",
         "[word for word in getattr"),
        ("a folder that has gone", 1, "with suppress(OSError):  # that folder",
         "with suppress(KeyError):  # that folder"),
    ],
    f"{ENDINGS}::test_what_runs_at_the_start": [
        ("a sitecustomize that is run again", 1, "if HERE not in [", "if None not in ["),
        ("the doctor inside records", 1, "if os.path.dirname(FOLDER) == os.path.dirname(HERE):",
         "if True:"),
    ],
    f"{ENDINGS}::test_modules_of_the_script": [
        ("Python's modules for the recorder", 1, "if is_theirs(before[name])}", "if not name}"),
        ("the script's modules after it", 1, "        sys.modules.update(theirs)\n", ""),
    ],
    f"{ENDINGS}::test_modules_beside_the_doctor": [
        ("Python's modules for the doctor", 1, ".resolve() not in own]", ".resolve() != here]"),
    ],
    f"{PRINTED}::test_steps": [
        ("a number that can be read in one way", 1, r"\d+(?:\.\d*)?|\.", r"\d+\.?\d*|\."),
        ("a date that can be read in one way", 1, r"(\d\d+)?([-_T]\d\d+)*",
         r"([-_T]?\d{2,6})*"),
        ("a rate begins where digits do", 1, r"[-+]?(?<!\d){UNSIGNED}", "{NUMBER}"),
    ],
    f"{PRINTED}::test_a_line_without_an_end": [
        ("so much of a line is kept", 1, "self.begun + rest)[:LONGEST]", "self.begun + rest)"),
    ],
    f"{ENDINGS}::test_steps_are_counted_once": [
        ("files of events are read on", 1, "file.seek(read)", "file.seek(0)"),
    ],
    f"{KINDS}::test_nothing_to_say[federated]": [
        ("clients that make unequal numbers of steps average, too", 1,
         "if len(set(met)) > 1 and apart", "if len(set(met)) < 1 and apart"),
    ],
    f"{PROGRAM}[a-GAN]": [
        ("gradients of another model's backward are left over rightly", 1,
         "self.emptied = self.emptied or not self.kept", "self.emptied = False"),
    ],
    f"{PROGRAM}[gradients-that-are-set]": [
        ("gradients that backward adds nothing to are none that pile up", 1,
         "self.added and not self.emptied", "self.left is not None and not self.emptied"),
    ],
    f"{PROGRAM}[eval-mode-without-a-difference]": [
        ("eval mode may make no difference", 1, '"training", True) or not self.moody',
         '"training", True)'),
    ],
    f"{PROGRAM}[seeds-by-rank,-and-one-for-all-in-the-loop]": [
        ("two calls of a helper that seeds are two lines", 1, "DEEP = 4", "DEEP = 1"),
    ],
    "doctor/tests/test_sentences.py::test_an_error_comes_first": [
        ("a step that failed needs no second explanation", 1,
         "return last and any(map(failed", "return False and any(map(failed"),
    ],
    f"{DOCTOR}::test_an_error_of_the_script": [
        ("a child's own error is told", 1, "told(status and (error or status))", "told(status)"),
    ],
    f"{DOCTOR}::test_ended_by_a_signal_to_all": [
        ("an error by a signal to all is none", 1,
         'stopped - (one.ended.get("error") != "None")', "stopped"),
    ],
    f"{DOCTOR}::test_explanations": [
        ("each kind's advice is explained", 1, "for _, *rest in kinds for", "for rest in [] for"),
    ],
    f"{DOCTOR}::test_one_file": [
        ("the doctor says how it was called", 1, "call = own_call()", "call = str()"),
    ],
    f"{DOCTOR}::test_installed": [
        ("the installed doctor calls itself by its name", 1,
         "shutil.which(name) == sys.argv[0]", "False"),
    ],
    f"{DOCTOR}::test_line_of_a_class_of_its_own": [
        ("a loader's line is not in its class", 1, "user_line(loader)", "user_line()"),
    ],
    f"{KINDS}::test_nothing_to_say[curriculum]": [
        ("the doctor knows what never shuffles", 1, "shuffles=any(map(shuffles, drawing(loader)))",
         "shuffles=True"),
    ],
    f"{KINDS}::test_nothing_to_say[folds]": [
        ("the doctor looks for a sampler in a sampler", 1, '("sampler", "_sampler")', '()'),
        ("the doctor knows a step that is none", 1, "if begins_state() or (not", "if (not"),
        ("the doctor says that samples are chosen", 1,
         'any(re.search(CHOSEN, one.loader["sampler"])', "any(False"),
    ],
    f"{PROBES}::test_a_loader_that_cannot_be_told": [
        ("a probe that fails is told", 1, 'self.event("trouble", ', 'str("", '),
    ],
    f"{KINDS}::test_nothing_to_say[results_of_a_library]": [
        ("results may be joined from files of a library", 1,
         "bool(set.intersection(*names)) and not", "False and not"),
    ],
    f"{KINDS}::test_is_named[wrong_own_stop]": [
        ("rates differ once ranks have left a loop at different times", 1,
         "return seen.parted", "return not seen.parted"),
    ],
    f"{KINDS}::test_nothing_to_say[prefetched_epoch]": [
        ("batches of an epoch may be fetched before its first step", 1,
         "return self.chosen  # a later batch of", "return []  # a later batch of"),
    ],
    f"{KINDS}::test_nothing_to_say[sanity_check]": [
        ("the doctor knows a look at the validation set", 1,
         "[one for one in whole if one.by_grad or one in self.given_before]", "whole"),
    ],
    f"{DOCTOR}::test_a_scheduler_of_a_wrapper": [
        ("the doctor finds the scheduler of a wrapper", 1,
         "s.optimizer.param_groups is g", "s.optimizer is optimizer"),
    ],
    f"{KINDS}::test_nothing_to_say[episodes]": [
        ("the doctor knows samples that are drawn", 1, "len(set(keys)) < len(keys)", "False"),
    ],
    f"{KINDS}::test_nothing_to_say[generated_set]": [
        ("the doctor knows a set that is generated as it is read", 1,
         'if kind == "epochs" and not loader["shuffles"]:', "if False:"),
    ],
    f"{AGAINST}::test_nothing_differs[2-the-longest-first]": [
        ("the doctor knows rows that a collate_fn has sorted", 1,
         "        if all(map(same_item, *rows)):", "        if False:"),
    ],
    f"{AGAINST}::test_nothing_differs[2-padded-to-the-longest-of-a-batch]": [
        ("why contents were not compared", 1, '"unlike" if len(shapes) > 1 else', ""),
        ("the doctor knows samples that are padded", 1,
         "elif len(shapes) > 1:", "elif False:"),
    ],
    f"{KINDS}::test_nothing_to_say[unequal_joined]": [
        ("the doctor knows what a rank that has joined calls", 1,
         "    if any(rank.events[\"join\"] for rank in ranks):\n        # A rank",
         "    if False:\n        # A rank"),
    ],
    f"{PROGRAM}[a-rate-that-the-script-sets]": [
        ("the doctor knows that a rate is set by hand", 1, 'or over else "rates"', 'else None'),
    ],
    f"{ORDER}[a-weighted-sampler]": [
        ("a rank's share of the first run's order", 1, "self.place + self.step * n for n in",
         "n for n in"),
    ],
    f"{ORDER}[a-seed-of-its-own]": [
        ("each pass has its own order", 1, "    left.remove(same[0])\n", ""),
    ],
    "doctor/tests/test_tensors.py::test_files_beside_the_script": [
        ("files of another job beside the script", 1, 'if word.endswith(".py"):', "if False:"),
    ],
    f"{ORDER}[a-pass-that-nobody-takes-batches-from]": [
        ("a pass without a batch", 1, " or not one.batches", ""),
        ("what workers fetched, and nobody took", 1, "left.insert(0, found)", "pass"),
    ],
    f"{ORDER}[a-sampler-that-fills-up]": [
        ("a share that is filled up", 1, "        if self.whole:\n", "        if False:\n"),
    ],
    f"{ORDER}[a-sampler-that-fills-a-batch-up]": [
        ("how much fills the shares up", 1, "if again[1] <= again[0] + most:", "if True:"),
    ],
    f"{ORDER}[a-share-in-name-alone]": [
        ("a sampler that gives the whole set", 1, "(exact and shares == 1 and not again)", "False"),
    ],
    f"{ORDER}[batches-of-as-many-words]": [
        ("batches of unequal sizes", 1, "        if self.unequal:\n", "        if False:\n"),
    ],
    f"{ORDER}[indices-that-are-tuples]": [
        ("indices that are no numbers", 1, "literal_eval(key) if isinstance(key, str) else key",
         "key"),
    ],
    f"{ORDER}[a-Subset]": [
        ("indices into a Subset", 1, 'batch.get("raw") or batch', "batch"),
    ],
    f"{AGAINST}::test_own_order_is_judged[rank-of-one-run]": [
        ("what a sampler has drawn itself", 1, "        entry[1] = [",
         "        entry[0] = entry[1] = ["),
    ],
    f"{PROGRAM}[a-full-batch]": [
        ("the same rows in every step", 1, " or any(a == b for a, b in pairwise(mine))", ""),
    ],
    f"{PROGRAM}[batches-drawn-by-one-seed]": [
        ("rows that random numbers have drawn", 1,
         'if any(ranks[m].steps[k]["drawn"] for k in (1, 2)):', "if False:"),
    ],
    f"{PROGRAM}[texts-beside-equal-rows]": [
        ("what is no tensor may tell rows apart", 1, "if others or strange", "if strange"),
    ],
    f"{INPUTS}[saved-and-copied]": [
        ("a forward pass of no step", 1, "[one for one in self.given if one.learned]",
         "self.given"),
    ],
    f"{INPUTS}[a-full-batch]": [
        ("all of a graph on all ranks", 1, "and fixed(one) and fixed(two):", "and False:"),
    ],
    f"{INPUTS}[numpy's-batches,-drawn-by-each-rank]": [
        ("rows that come twice by chance", 1, " and (whole or not call):", ":"),
    ],
    f"{INPUTS}[half-of-the-digits]": [
        ("rows of other types", 1, "    if kinds:\n", "    if False:\n"),
    ],
    f"{INPUTS}[another-seed-of-an-own-generator]": [
        ("rows in another order", 1, 'if n == 1 and values["common"] < len(a) / 2:', "if False:"),
    ],
    "doctor/tests/test_speed.py::test_ranks_together[one-waits]": [
        ("a rank that waits in its steps is not slow", 1,
         'pace = max if self.ranks[0]["ddp"] and kind != "communication" else min', "pace = min"),
    ],
    "doctor/tests/test_speed.py::test_ranks_together[unlike-batches]": [
        ("a step has the samples of all ranks", 1,
         'return pace(row["steps"] / row["seconds"] for row in each) * batches',
         'return pace(row[self.unit] / row["seconds"] for row in each)'),
    ],
    "doctor/tests/test_doctor.py::test_fault_is_found[overlapping_samples]": [
        ("a Subset may be a share", 1, 'and size == self.loader["root"]', ""),
    ],
    f"{SPEED}[no-loader]": [
        ("weights that stay", 1, '                group["lr"] *= 0', "                pass"),
        ("no word of what was not taken out", 1, 'if out and "input" in parts else', "if out else"),
    ],
    f"{SPEED}[no-loader-and-an-evaluation-on-one-rank]": [
        ("an evaluation without a loader", 1, '                self.save("evaluation")\n',
         "                pass\n"),
        ("what is outside of steps that no batch begins", 1,
         "            self.within.update(self.spent)\n", "            pass\n"),
    ],
    f"{SPEED}[batches-that-are-lists]": [
        ("a list as long as its sampler says", 1, "told if told in found + lists else ", ""),
    ],
    f"{SPEED_FILE}::test_collectives_of_steps": [
        ("collectives of all steps", 1, "self.calls = max(calls, default=0)",
         'self.calls = max(r["collectives"] / r["steps"] for each in plain for r in each)'),
    ],
    f"{SPEED}[accumulation-with-no_sync]": [
        ("windows without communication", 1,
         'windows.kind != "communication" and ddp.__dict__', "ddp.__dict__"),
        ("what no_sync puts back", 1,
         'if windows.kind != "communication":  # no_sync, say', "if True:  # no_sync, say"),
        ("bytes that are really averaged", 1, "+= size * ddp.require", "+= size or ddp.require"),
    ],
    f"{SPEED}[batches-that-are-changed]": [
        ("batches that come again as they were", 1, "        if versions(batch) != before:\n",
         "        if False:\n"),
    ],
    f"{SPEED}[workers-that-begin-anew]": [
        ("time outside of steps", 1, "                self.spent[self.what] += now - self.at\n",
         "                pass\n"),
        ("none of it in windows without input", 1, 'if row["kind"] != "input"]', "]"),
    ],
    f"{SPEED}[workers-that-are-hardly-too-slow]": [
        ("queues that are taken away", 1, "            self.drain()\n", "            pass\n"),
    ],
    f"{SPEED_FILE}::test_plan[workers]": [
        ("whole turns of the workers", 1, "-(-steps // turn) * turn", "steps"),
        ("queues that are full", 1, '"communication": queued}', '"communication": 0}'),
    ],
    f"{SPEED_FILE}::test_more_ranks[input-and-epochs]": [
        ("what hides behind backward", 1, "max(sent, -early)", "max(sent, 0.0)"),
        ("bytes and not numbers", 1, "size = weight.numel() * weight.element_size()",
         "size = weight.numel()"),
        ("how often a ring sends them", 1, "2 * (gpus - 1) / gpus * size / bandwidth",
         "size / bandwidth"),
        ("no faster than the loader", 1, "max(computes + later, alone * times)",
         "computes + later"),
        ("epochs of fewer steps", 1, "(more - 1) * grows", "0 * grows"),
        ("batches that were ready", 1, "ended = self.take(ready)", "ended = False"),
    ],
    f"{SPEED_FILE}::test_batch_that_pays": [
        ("a larger batch hides more", 1, "early * times)", "early)"),
    ],
    f"{SPEED}[a-batch-that-the-loop-works-on]": [
        ("what the loop does with a batch", 1, "            self.handed = time.perf_counter()\n",
         "            pass\n"),
    ],
    f"{SPEED}[a-slow-rank-and-a-loss-that-is-logged]": [
        ("waiting in the script's own collectives", 1,
         'max(1e-9, each[rank]["seconds"] - waited)', 'each[rank]["seconds"]'),
    ],
    f"{SPEED}[averages-of-its-own]": [
        ("the script's own collectives", 1, "            self.stamps.append((begin, stamp()))\n",
         "            pass\n"),
    ],
    f"{SPEED}[unlike-lengths]": [
        ("lengths of a step's batches", 1, "self.work += sum(", "self.work = 0 * sum("),
    ],
    f"{SPEED}[saving]": [
        ("passes as long as always", 1, "(comes_again or behind)", "comes_again"),
        ("saving is outside of steps", 1, "            self.turn_to(what)\n", "            pass\n"),
    ],
    f"{SPEED}[a-little-of-each]": [
        ("all that is not the step", 1, "100 - sum(share(", "100 - max(share("),
    ],
    f"{SPEED_FILE}::test_how_sure[drift]": [
        ("neighbours in time", 1, "as_it_is = (1 - part) * near[0] + part * near[-1]",
         "as_it_is = math.log(median(plain.values()))"),
    ],
    f"{SPEED_FILE}::test_how_sure[busy]": [
        ("a look after each round", 1, "SURE = 0.995", "SURE = 0.8"),
    ],
    f"{SPEED_FILE}::test_when_it_ends[decided]": [
        ("an end when all is decided", 1, "or speed.settled()", "or False"),
    ],
    f"{SPEED_FILE}::test_when_it_ends[undecided]": [
        ("no end before", 1, "or speed.settled()", "or True"),
    ],
    f"{SPEED_FILE}::test_when_it_ends[for-long]": [
        ("an end without a new round", 1, "(rounds == self.rounds and not late)",
         "rounds == self.rounds"),
    ],
    f"{SPEED_FILE}::test_too_few_rounds": [
        ("nothing is said of a few rounds", 1, "    if len(logs) < FEWEST:\n",
         "    if not logs:\n"),
    ],
    "doctor/tests/test_speed.py::test_files_of_before[as-long,-and-linked]": [
        ("the time of a file", 1, ", was.st_mtime_ns) != (now.st_size, now.st_mtime_ns)",
         ",) != (now.st_size,)"),
    ],
    "doctor/tests/test_speed.py::test_files_of_before[keeps-the-time]": [
        ("the time of change", 1, "was.st_ctime_ns != now.st_ctime_ns and", "False and"),
    ],
    "doctor/tests/test_speed.py::test_files_of_before[a-hard-link]": [
        ("a second name is no change", 1, " and was.st_nlink == now.st_nlink", ""),
    ],
    "doctor/tests/test_speed.py::test_files_of_before[elsewhere]": [
        ("folders that the command names", 1, 're.split(r"[\\s=]+", word)', "word.split()"),
    ],
    "doctor/tests/test_speed.py::test_too_many_files": [
        ("what was not looked at", 1, "            unseen.append(path)\n",
         "            pass\n"),
        ("checkpoints first", 1, "(not LOOKS.search(name), name)", "name"),
    ],
    f"{ENDINGS}::test_nothing_goes_on[env]": [
        ("its own session", 1, "int(session) == self.session\n", "not session\n"),
        ("what its processes have started", 1, "in children[pid] if", "in () if"),
    ],
    f"{ENDINGS}::test_a_recorded_process_is_its_own": [
        ("a process that records", 1, "folder.name in recorded and", "not folder.name and"),
        ("a number is not enough", 1, "in recorded and self.writes(folder)", "in recorded"),
    ],
    f"{ENDINGS}::test_what_still_runs": [
        ("the folder of what is left", 1, "        if not self.left():\n            shutil",
         "        if True:\n            shutil"),
        ("an empty one", 1, "            elif path != first:\n", "            elif False:\n"),
    ],
    f"{ENDINGS}::test_signals_that_are_passed_on[SIGUSR1]": [
        ("a signal for the command", 1, "else job.pass_on)", "else signal.SIG_IGN)"),
    ],
    f"{ENDINGS}::test_a_guard_that_is_ended": [
        ("a pipe of a guard that has gone", 1,
         "        with suppress(BrokenPipeError):\n            os.write(self.alive, OVER)\n",
         "        os.write(self.alive, OVER)\n"),
    ],
    f"{ENDINGS}::test_nobody_reads_it": [
        ("a reader that has gone", 1, "with suppress(BrokenPipeError):\n            return",
         "with suppress(KeyError):\n            return"),
        ("python -OO", 1, '(__doc__ or "").partition("\\n")', '__doc__.partition("\\n")'),
    ],
    f"{ENDINGS}::test_both_runs_begin_alike": [
        ("signals of the second run", 1, "in HEARD:  # ENDS end the job", "in ():  # ENDS end it"),
        ("stdin of the second run", 1, "os.lseek(0, self.stdin, os.SEEK_SET)", "pass"),
    ],
    f"{PLACE}[a-head-that-is-cut-off]": [
        ("rows of the same samples are compared", 1,
         "order = sorted(turns, key=turns.get)", "order = range(size)"),
    ],
    f"{PLACE}[accumulation-that-does-not-divide]": [
        ("passes may be shares of one batch", 1,
         "merged = {root for root in roots if len(passes[root]) > 1}", "merged = set()"),
    ],
    f"{PLACE}[a-hook]": [
        ("gradients are compared by their right factor", 1,
         "right = factors if outermost else [self.times] * len(pairs)", "right = factors"),
    ],
    f"{KINDS_OF_PLACE}[reentrant-checkpoints-of-one-block,-and-a-hook]": [
        ("a checkpoint computes without gradients at first", 1,
         "self.again.add(id(module))", "pass"),
    ],
    f"{KINDS_OF_PLACE}[a-first-look]": [
        ("a pass from which no gradient comes", 1,
         'for e in events if e["root"] not in roots}', "for e in events}"),
    ],
    f"{KINDS_OF_PLACE}[texts-padded-to-a-rank's-own-longest]": [
        ("texts are cut to the places that all have", 1,
         'rows = [row for n, row in enumerate(rows) if n % e["places"] < least]',
         "return tensors"),
    ],
    f"{KINDS_OF_PLACE}[a-part-of-another-one,-and-a-factor]": [
        ("a model may be a part of another one", 1, "        name_alike(*sides)\n", ""),
    ],
    f"{KINDS_OF_PLACE}[two-models,-and-a-detach]": [
        ("what is detached before it has no gradient either", 1,
         'if lost & calls[0]["gradients"].keys():', "if True:"),
    ],
    "doctor/tests/test_where.py::test_ranks_that_share_samples": [
        ("parts of a tensor are not compared", 1,
         "if len({str(shape[1:] if shape else None) for _, shape in every}) > 1:", "if False:"),
    ],
    "doctor/tests/test_where.py::test_a_second_pair": [
        ("a second pair that parts elsewhere", 1,
         "if now and (now.name, now.step) == (parted.name, parted.step):", "if again:"),
        ("--no-where", 1, "parting(comparison) if args.where else None", "parting(comparison)"),
    ],
    "doctor/tests/test_where.py::test_same_bits": [
        ("modules are only read", 1, "part = part.nan_to_num(LARGE)",
         "part = part.mul_(1.01).nan_to_num(LARGE)"),
    ],
}
# fmt: on
