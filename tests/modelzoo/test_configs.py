"""Every config has the published number of parameters, its run, and its row on the page."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.transformer.model import EncoderDecoder
from tests.modelzoo.configs import CONFIGS, build, cells_of, count, count_by_layers, load

# Those of transformers models are in tests/modelzoo/hugging_face/test_models.py.
STEMS = [
    path.stem for path in sorted(CONFIGS.glob("params_*.yaml")) if "params_hf_" not in path.name
]
PARAMS = {stem: load(stem) for stem in STEMS}
TUNED = "bert.fine_tuning."
# BERT as released (Devlin et al. 2018), with the heads of pre-training; PubMedBERT's dimensions are
# the same. With the head of SQuAD as Hugging Face counts them; of BERTSUM, without the pooler.
BASE, LARGE = 110_106_428, 336_226_108
# GPT-2: Radford et al. (2019) as released. Cerebras-GPT and the GPT-3 of the same dimensions,
# vocabulary and positions: Dey et al. (2023). gpt2_small_msl2048 and gpt3_20b_pile have no
# published count. GPT-J and GPT-NeoX: tensors of EleutherAI's checkpoints.
PARAMETERS = {
    **{
        f"params_{model}_{size}_msl{length}": number
        for model in ("bert", "pubmedbert")
        for size, number in (("base", BASE), ("large", LARGE))
        for length in (128, 512)
    },
    "params_bert_base_squad": 108_893_186,
    "params_bert_large_squad": 334_094_338,
    "params_bert_base_bertsum": 108_892_417,
    "params_bert_large_bertsum": 334_093_313,
    "params_gpt2_small": 124_439_808,
    "params_gpt2_small_msl2048": 125_226_240,
    "params_gpt2_medium": 354_823_168,
    "params_gpt2_large": 774_030_080,
    "params_gpt2_xlarge": 1_557_611_200,
    "params_gpt3_xl_pile": 1_315_723_264,
    "params_gpt3_xl_grad_accum_pile": 1_315_723_264,
    "params_gpt3_2p7b_pile": 2_651_553_280,
    "params_gpt3_6p7b_pile": 6_658_404_352,
    "params_gpt3_13b_pile": 12_853_386_240,
    "params_gpt3_20b_pile": 20_256_221_184,
    "params_cerebras_gpt_111m_pile": 111_050_496,
    "params_cerebras_gpt_256m_pile": 255_977_024,
    "params_cerebras_gpt_590m_pile": 590_310_912,
    "params_cerebras_gpt_1p3b_pile": 1_315_723_264,
    "params_cerebras_gpt_2p7b_pile": 2_651_553_280,
    "params_cerebras_gpt_6p7b_pile": 6_658_404_352,
    "params_cerebras_gpt_13b_pile": 12_853_386_240,
    "params_cerebras_gpt_13b_pile_1080": 12_853_386_240,
    "params_gptj_6b": 6_050_882_784,
    "params_gptj_6b_finetune_summarization": 6_050_882_784,
    "params_gpt_neox_20b": 20_554_567_680,
}
# Vaswani et al. (2017), table 3, in millions, for "about 37000 tokens".
PAPER = {"params_transformer_base": 65, "params_transformer_large": 213}
# Encoder and pooler of BERT as released: "110M" and "340M".
RELEASED = {"params_bert_base_sst2": 109_482_240, "params_bert_large_sst2": 335_141_888}
# Dey et al. (2023): sequences of a step, tokens and FLOP of the run. Their configs give the FLOP of
# 1.3B, 2.7B and 6.7B to four digits. At 111M their table says 2.5e18, which no count gives that
# fits the others.
PUBLISHED = {
    "params_cerebras_gpt_111m_pile": (120, "2.22e9", None),
    "params_cerebras_gpt_256m_pile": (264, "5.12e9", 1.1e19),
    "params_cerebras_gpt_590m_pile": (264, "1.18e10", 5.3e19),
    "params_cerebras_gpt_1p3b_pile": (528, "2.63e10", 2.498e20),
    "params_cerebras_gpt_2p7b_pile": (528, "5.30e10", 9.767e20),
    "params_cerebras_gpt_6p7b_pile": (1040, "1.33e11", 5.853e21),
    "params_cerebras_gpt_13b_pile_1080": (1080, "2.57e11", 2.1e22),
    "params_gpt3_xl_grad_accum_pile": (528, "2.63e10", 2.498e20),
    "params_gpt3_2p7b_pile": (528, "5.30e10", 9.767e20),
    "params_gpt3_6p7b_pile": (1040, "1.33e11", 5.853e21),
}
MULTI30K_VOCABULARY = 6000  # its file is made by cerebras-tf prepare vocab


def names_of(*models):
    return [name for name, params in PARAMS.items() if params.model_name.startswith(models)]


def gpt(params):
    """12 L h^2 and its biases, with feed-forward width f, vocabulary V and positions S."""
    h, f = params.model.hidden_size, params.model.filter_size
    block = 4 * (h * h + h) + 2 * h * f + f + h + 2 * 2 * h
    rows = params.train_input.vocab_size + params.max_position_embeddings
    return params.model.num_hidden_layers * block + rows * h + 2 * h


def gptj(params):
    """12 L h^2 with what a variant adds to it."""
    m, vocab_size = params.model, params.train_input.vocab_size
    h, f = m.hidden_size, m.filter_size
    block = 4 * h * h + 2 * h * f + f + h + 2 * h * (2 if m.use_untied_layer_norm else 1)
    block += 3 * h * m.use_projection_bias_in_attention + h * m.use_ffn_bias_in_attention
    tables = vocab_size * h * (1 if m.share_embedding_weights else 2)
    return m.num_hidden_layers * block + tables + vocab_size * m.use_bias_in_output + 2 * h


def bert(params):
    """Embeddings, L blocks of 4 h^2 + 2 h f, and the head, with their biases and norms."""
    m = params.model
    h, f = m.hidden_size, m.filter_size
    positions = params.max_position_embeddings if m.position_embedding_type == "learned" else 0
    rows = params.vocab_size + positions + m.num_segments * m.use_segment_embedding
    block = 4 * (h * h + h) + 2 * h * f + f + h + 2 * 2 * h
    return rows * h + 2 * h + m.num_hidden_layers * block + bert_head(params, m, h)


def bert_head(params, m, h):
    task = params.model_name.removeprefix(TUNED)
    if task == "bert":
        sentences = 0 if m.disable_nsp else h * h + h + 2 * h + 2
        return h * h + h + 2 * h + params.vocab_size + sentences
    if task == "classifier":
        return h * h + h + (h + 1) * m.num_cls_classes
    outputs = {"question_answering": 2, "extractive_summarization": 1}
    return (h + 1) * (outputs.get(task) or m.num_classes)


def vocabulary(params):
    return params.train_input.src_vocab_size or MULTI30K_VOCABULARY


def transformer(params):
    """Blocks of 4 h^2 an attention and 2 h f a feed-forward layer, one embedding of V tokens.

    Attention has no biases; feed-forward layers, norms (before, and one after each sublayer) and
    the output have.
    """
    m = params.model
    h, f = m.hidden_size, m.filter_size
    feed_forward = 2 * h * f + f + h
    encoder = m.encoder_num_hidden_layers * (4 * h * h + feed_forward + 2 * 2 * h)
    decoder = m.decoder_num_hidden_layers * (2 * 4 * h * h + feed_forward + 3 * 2 * h)
    return encoder + decoder + vocabulary(params) * (h + 1) + 2 * 2 * h


FORMULAS = {"gpt3": gpt, "gptj": gptj, "bert": bert, "transformer": transformer}


def formula(params):
    return FORMULAS[params.model_name.partition(".")[0]](params)


def build_transformer(params, monkeypatch):
    """Builds the model without memory for its variables, and returns those that are trained."""
    sizes = (vocabulary(params),) * 2
    monkeypatch.setattr("modelzoo.transformer.model.vocabulary_sizes", lambda section: sizes)
    with tf.Graph().as_default():
        ids = tf.zeros([2, 8], tf.int32)
        features = {"encoder_input_ids": ids, "encoder_mask": ids, "decoder_input_ids": ids}
        model = EncoderDecoder(params, training=False)
        model.logits(*model.decoder_output(features))
        return tf.trainable_variables()


def test_every_published_size_has_a_config():
    assert set(PARAMETERS) | set(PAPER) | set(RELEASED) | set(PUBLISHED) <= set(PARAMS)
    for task in ("classifier", "token_classifier", "question_answering", "extractive_summ"):
        sizes = {name.split("_")[2] for name in names_of(f"{TUNED}{task}")}
        assert sizes == {"base", "large", "small"}


def kind(params):
    """What a graph is built by, other than sizes."""
    keys = {k: v for k, v in vars(params.model).items() if k != "pretrain_params_path"}
    plain = (bool, str)
    return params.model_name, str({k: v if type(v) in plain else type(v) for k, v in keys.items()})


KINDS = {kind(params): name for name, params in reversed(PARAMS.items())}


def test_formulas_give_the_published_numbers():
    for name, published in PARAMETERS.items():
        assert formula(PARAMS[name]) == published, name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in KINDS.values() else [pytest.mark.slow])
        for name in PARAMS
    ],
)
def test_config_has_its_number_of_parameters(name, monkeypatch):
    params = PARAMS[name]
    if params.model_name == "transformer":
        counted = count(build_transformer(params, monkeypatch))
    else:
        counted = count_by_layers(params)
    assert counted == formula(params)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "params_gpt2_small" else [pytest.mark.slow])
        for name in names_of("gpt3", "gptj", "bert")
    ],
)
def test_whole_graph_has_as_many_parameters_as_its_layers_say(name):
    assert count(build(PARAMS[name])) == formula(PARAMS[name])


def test_sizes_are_those_of_the_papers():
    """That of the Transformer rounds: 4 % are allowed."""
    for name, millions in PAPER.items():
        assert formula(PARAMS[name]) == pytest.approx(1e6 * millions, rel=0.04)
    for name, released in RELEASED.items():
        assert formula(PARAMS[name]) - 2 * PARAMS[name].model.hidden_size - 2 == released


def tokens(params):
    """Tokens of all steps, padding included: steps x global batch x sequence."""
    section = params.train_input
    return params.runconfig.max_steps * params.global_batch_size * section.max_sequence_length


def flops(params):
    """Floating-point operations of all steps.

    Counted as by Hoffmann et al. (2022, appendix F): the products of a forward pass, embedding and
    full attention included, a softmax as 3 operations an element, three times, as the backward pass
    is two. A gradient of the embedding's input, which nothing needs, is not counted; so are the
    figures of Dey et al. (2023) met to four digits.
    """
    m, length = params.model, params.train_input.max_sequence_length
    size = m.hidden_size
    vocab_size = getattr(params, "vocab_size", params.train_input.vocab_size)
    embedding = 2 * length * vocab_size * size
    block = 8 * length * size**2 + 4 * length * size * m.filter_size
    block += 4 * length**2 * size + 3 * m.num_heads * length**2
    head = embedding
    if params.model_name == "bert":
        words = params.train_input.max_predictions_per_seq * (size**2 + size * vocab_size)
        head = 2 * (words + (0 if m.disable_nsp else size**2 + size * m.num_cls_classes))
    forward = embedding + m.num_hidden_layers * block + head
    return (3 * forward - embedding) * (tokens(params) // length)


def short(number):
    """A large number with three digits, such as 2.63e10."""
    digits, exponent = f"{number:.2e}".split("e")
    return f"{digits}e{int(exponent)}"


def row_of(params):
    """The cells of a config on the page: its sizes, its parameters and its run."""
    m, section = params.model, params.train_input
    number = f"{formula(params):,}"
    if params.model_name == "transformer":
        layers = f"{m.encoder_num_hidden_layers} + {m.decoder_num_hidden_layers}"
        sizes = [m.hidden_size, m.num_heads, m.filter_size, vocabulary(params)]
        return [layers, *map("{:,}".format, sizes), number]
    sizes = [m.num_hidden_layers, m.hidden_size, m.num_heads, m.filter_size]
    sizes += [m.rotary_dim or m.head_size] if params.model_name == "gptj" else []
    row = [*map("{:,}".format, [*sizes, section.max_sequence_length]), number]
    if params.model_name.startswith(TUNED):
        return row
    return [*row, f"{params.global_batch_size:,}", short(tokens(params)), short(flops(params))]


@pytest.mark.parametrize("model", sorted({params.model_name for params in PARAMS.values()}))
def test_page_lists_every_config_with_its_dimensions_and_its_run(model):
    expected = {n: row_of(params) for n, params in PARAMS.items() if params.model_name == model}
    assert cells_of(model) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_run_is_the_published_one(name):
    params, (batch, wanted, published) = PARAMS[name], PUBLISHED[name]
    assert params.global_batch_size == batch and short(tokens(params)) == wanted
    if published:
        digits = len(f"{published:g}".split("e")[0].replace(".", ""))
        assert float(f"{flops(params):.{digits - 1}e}") == published
    if name.startswith("params_cerebras_gpt"):  # the models of this family have 20 a parameter
        assert tokens(params) / PARAMETERS[name] == pytest.approx(20, rel=1e-3)


@pytest.mark.parametrize(
    "name", [n for n in PARAMS if n.startswith("params_cerebras_gpt_")] + ["params_gpt3_2p7b_pile"]
)
def test_first_lines_of_a_config_say_what_its_run_is(name):
    params = PARAMS[name]
    lines = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("# ") for line in lines[: lines.index("model_name: gpt3")])
    wafers = params.runconfig.num_csx
    assert (
        f"{params.runconfig.max_steps:,} steps of {params.global_batch_size:,} sequences on "
        f"{'one wafer' if wafers == 1 else f'{wafers} wafers'}"
    ) in comment
    assert f"{short(tokens(params))} tokens, {short(flops(params))} FLOP" in comment


def test_second_part_of_13b_begins_where_the_first_has_read_as_much():
    first, second = (PARAMS[f"params_cerebras_gpt_13b_pile{part}"] for part in ("", "_1080"))
    assert first.runconfig.max_steps * first.global_batch_size == 38_000 * second.global_batch_size
    assert first.model == second.model
    page = (CONFIGS.parent / "docs" / "tutorials" / "gpt.md").read_text(encoding="utf-8")
    assert {"38000", str(first.runconfig.max_steps)} <= set(page.replace(",", "").split())


def test_xl_and_6p7b_differ_in_their_five_lines():
    xl, big = (
        [line for line in path.read_text().splitlines() if not line.startswith("#")]
        for path in (CONFIGS / f"params_gpt3_{size}_pile.yaml" for size in ("xl", "6p7b"))
    )
    assert len(xl) == len(big)
    differing = [a.split(":")[0].strip() for a, b in zip(xl, big) if a != b]
    sizes = ["hidden_size", "num_hidden_layers", "num_heads", "filter_size"]
    assert differing == [*sizes, "save_summary_steps"]


def test_fine_tuning_of_gptj_takes_every_weight_of_pre_training():
    shapes = [
        {variable.op.name: variable.shape for variable in build(PARAMS[name], layers=2)}
        for name in ("params_gptj_6b", "params_gptj_6b_finetune_summarization")
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", names_of("gptj"))
def test_given_initializers_of_gptj_follow_from_the_sizes(name):
    """Outputs start with 4 / L^2 over their fan-in, embeddings of GPT-J with 1 / sqrt(V)."""
    params = PARAMS[name]
    model = params.model
    if model.output_layer_initializer is not None:
        expected = 4.0 / model.num_hidden_layers**2
        assert model.output_layer_initializer.scale == pytest.approx(expected, rel=1e-4)
    embedding = model.embedding_initializer
    if embedding is not None and embedding.name == "truncated_normal":
        expected = params.train_input.vocab_size**-0.5
        assert embedding.stddev == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", PAPER)
def test_learning_rate_is_eleven_lines_through_the_inverse_root_of_the_step(name):
    pieces = PARAMS[name].optimizer.learning_rate
    assert [piece.steps for piece in pieces] == [4000] + 10 * [9600]
    step = 0
    for before, piece in zip((None, *pieces), pieces):
        step += piece.steps
        rate = (512 * (step + 1)) ** -0.5
        assert piece.end_learning_rate == pytest.approx(rate, rel=1e-9)
        assert piece.initial_learning_rate == (before.end_learning_rate if before else 1e-7)
    assert pieces[-1].end_learning_rate == pytest.approx(1.39754e-4, rel=1e-5)


def numbered(name, number):
    return f"{name}_{number}" if number else name


def test_variables_of_the_transformer_have_the_names_of_the_original_checkpoints(monkeypatch):
    """The tiny one has two layers a side; numbers of norms and dense layers run on.

    Names of the other models are those of their tables of conversion, in convert/test_layout.py.
    """
    built = build_transformer(PARAMS["params_transformer_tiny"], monkeypatch)
    expected = {"encoder_token_embedding/embedding_weights", "bias"}
    projections = ("q_projection", "k_projection", "v_projection", "output_transform")
    kinds = ("encoder/self", "decoder/self", "decoder/encoder_decoder")
    for kind in kinds:
        for layer in range(2):
            attention = numbered(f"{kind}_attention", layer)
            expected |= {f"{attention}/{p}/{p}/kernel" for p in projections}
    norms = [f"pre_{side}_layer_norm/pre_{side}_layer_norm" for side in ("encoder", "decoder")]
    for number in range(8):
        side, dense = ("encoder", "decoder")[number // 4], numbered("dense_layer", number)
        ffn = numbered(f"{side}/ffn", number % 4 // 2)
        expected |= {f"{ffn}/{dense}/{dense}/{part}" for part in ("kernel", "bias")}
    for number in range(10):
        norm = numbered("layer_normalization_layer", number)
        norms.append(f"{'encoder' if number < 4 else 'decoder'}/{norm}/{norm}")
    expected |= {f"{norm}/{part}" for norm in norms for part in ("gamma", "beta")}
    assert {variable.op.name for variable in built} == expected
