"""`cerebras-tf report`: the compile report of a language model from its sizes alone, in seconds.

It builds no graph and needs neither data nor memory for weights, so it serves models that no
machine at hand could compile. That sizes and graph give the same figures is tested.
"""

from dataclasses import replace
from pathlib import Path

from cerebras_tf.api import positive_int
from cerebras_tf.errors import ConfigError
from cerebras_tf.whole_file import require_place, write_whole
from modelzoo.common.config.model_sections import count_vocabulary
from modelzoo.common.train.arguments import add_params_argument

MODES = ("weight_streaming", "pipelined")


def add_arguments(parser):
    """Adds the arguments of the command."""
    add = parser.add_argument
    add_params_argument(parser, "params file of gpt3, gptj or bert")
    add("--mode", choices=MODES, default=MODES[0], metavar="MODE", help=" or ".join(MODES))
    add(
        "--batch_size",
        type=positive_int,
        metavar="N",
        help="samples per wafer (default: as in the file)",
    )
    add("--num_csx", type=positive_int, metavar="N", help="wafers, if not the file's")
    add("--multireplica", action="store_true", help="number of replicas, in pipelined mode")
    add("--machine", default="cs2", help="system description in configs/wafer (default: cs2)")
    add("--release", help="software release of the system")
    add("--out", default="report.html", metavar="HTML", help="file to write")


def run(args):
    """Writes the report."""
    from cerebras_tf.api import (
        load_system,
        measured_rows,
        one_line,
        page,
        predict_pipelined,
        predict_split,
        predict_streaming,
    )
    from modelzoo.common.config.params import load_params

    require_place(args.out, "--out")
    streams = args.mode == MODES[0]
    if args.multireplica if streams else args.num_csx:
        option, mode = ("--multireplica", MODES[1]) if streams else ("--num_csx", MODES[0])
        raise ConfigError(
            f"report: {option} must come with --mode {mode}. Received: {args.mode}. Remove "
            f"{option}, or choose the other mode."
        )
    params = load_params(args.params, settings=args.set)
    workload, machine = workload_of(params, args), load_system(args.machine)
    num_csx = args.num_csx or params.runconfig.num_csx
    batches = params.optimizer.grad_accum_steps
    if streams:
        found = predict_streaming(workload, machine, args.release, num_csx)
    else:  # one system, which computes the batches of several sequentially
        predict = predict_split if args.multireplica else predict_pipelined
        found, batches = predict(workload, machine, args.release), batches * num_csx
    found = replace(found, micro_batches=batches)
    here = ["Computed from the sizes in the params file, without compiling the model."]
    text = page.report_page(found, here, measured_rows(load_system()))
    write_whole(args.out, text)
    print(one_line(found))
    print(f"written to {args.out}")


def workload_of(params, args):
    """The workload of a transformer's params."""
    from cerebras_tf.api import transformer

    model, section = params.model, params.train_input
    if params.model_name not in ("gpt3", "gptj", "bert"):
        raise ConfigError(
            f"{args.params}: must be a file of gpt3, gptj or bert. Received: {params.model_name}. "
            "Use --compile_only instead."
        )
    if model.embedding_size not in (None, model.hidden_size):
        raise ConfigError(
            f"{args.params}: model.embedding_size must be the hidden size, {model.hidden_size}, "
            f"for `report`. Received: {model.embedding_size}. Use --compile_only."
        )
    tied = getattr(model, "share_embedding_weights", True)
    positions, block_others, others = small_parameters(params)
    found = transformer(
        Path(args.params).stem.removeprefix("params_"),
        args.batch_size or section.batch_size,
        model.hidden_size,
        model.num_hidden_layers,
        model.num_heads,
        model.filter_size,
        count_vocabulary(section),
        section.max_sequence_length,
        getattr(section, "max_predictions_per_seq", None) or 0,
        tied=tied,
        positions=positions,
        block_others=block_others,
        others=others,
    )
    if params.sparsity is None:
        return found
    level, distribution = params.sparsity.sparsity_level, params.sparsity.sparsity_distribution
    if isinstance(level, dict) or distribution != "uniform":
        raise ConfigError(
            f"{args.params}: sparsity must be one level for all matrices, for `report`. Received: "
            f"{level}, {distribution}. Use --compile_only instead."
        )
    return found.pruned(1 - level, ("output",) if tied else ())


def small_parameters(params):
    """What a model trains besides its matrices: (positions, parameters of a block, others)."""
    model, vocabulary = params.model, count_vocabulary(params.train_input)
    hidden = model.hidden_size
    products = model.use_projection_bias_in_attention * 3 * hidden
    products += model.use_ffn_bias_in_attention * hidden
    products += model.use_ffn_bias * (model.filter_size + hidden)
    norm = 2 * hidden
    if params.model_name == "gptj":
        norms = 2 if model.use_untied_layer_norm else 1
        return 0, products + norms * norm, norm + model.use_bias_in_output * vocabulary
    learned = model.use_position_embedding and model.position_embedding_type == "learned"
    positions = params.max_position_embeddings if learned else 0
    if params.model_name == "gpt3":
        return positions, products + 2 * norm, model.use_pre_normalization * norm
    others = (
        2 * norm + hidden + vocabulary
    )  # after the embedding; before the logits of masked words
    if model.use_segment_embedding:
        others += model.num_segments * hidden
    if not model.disable_nsp:
        others += (hidden + 1) * (hidden + model.num_cls_classes)
    return learned and positions + model.position_embedding_offset, products + 2 * norm, others
