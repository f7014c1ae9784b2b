"""Which variables are moments of an optimizer: their updates decide, never their names."""

import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.capture.moments import find_moments
from cerebras_tf.capture.variables import managed_variables, variable_spec
from modelzoo.common.optimizers.training import accumulate

v1 = tf.compat.v1


def moments_of(build):
    """Moments of what `build(weight)` returns of a 3 x 4 weight."""
    with tf.Graph().as_default() as graph:
        init = v1.ones_initializer()
        weight = v1.get_variable("w", (3, 4), use_resource=True, initializer=init)
        build(weight)
        handles = {op: variable_spec(v) for op, v in managed_variables(graph).items()}
        return find_moments(graph, handles)


def slot(name, shape=(3, 4), dtype=tf.float32):
    kwargs = {"trainable": False, "use_resource": True, "initializer": v1.zeros_initializer()}
    return v1.get_variable(name, shape, dtype, **kwargs)


def applied(make):
    return lambda w: make().apply_gradients([(tf.ones((3, 4)) * w, w)])


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: v1.train.AdamOptimizer(0.1), {"w/Adam", "w/Adam_1"}),
        (lambda: v1.train.RMSPropOptimizer(0.1), {"w/RMSProp", "w/RMSProp_1"}),
        (lambda: v1.train.RMSPropOptimizer(0.1, centered=True), {"w/RMSProp_2"}),
        (lambda: v1.train.MomentumOptimizer(0.1, 0.9), {"w/Momentum"}),
        (lambda: v1.train.AdadeltaOptimizer(0.1), {"w/Adadelta", "w/Adadelta_1"}),
        (lambda: v1.train.AdagradOptimizer(0.1), set()),
        (lambda: v1.train.FtrlOptimizer(0.1), set()),
        (lambda: v1.train.GradientDescentOptimizer(0.1), set()),
    ],
)
def test_optimizers_of_tensorflow(make, wanted):
    assert moments_of(applied(make)) == wanted


def test_rows_of_adam():
    def build(w):
        rows = tf.IndexedSlices(tf.ones((2, 4)), tf.constant([0, 2]), tf.constant([3, 4]))
        v1.train.AdamOptimizer(0.1).apply_gradients([(rows, w)])

    assert moments_of(build) == {"w/Adam", "w/Adam_1"}


FORMS = {
    "sum": lambda w, g, m: m.assign(0.1 * g + 0.9 * m),
    "toward": lambda w, g, m: m.assign(m + (g - m) * 0.1),
    "away": lambda w, g, m: m.assign(m - (m - g) * 0.1),
    "add": lambda w, g, m: m.assign_add((g - m) * 0.1),
    "sub": lambda w, g, m: m.assign_sub(0.1 * (m - g)),
    "where": lambda w, g, m: m.assign(tf.where(tf.reduce_sum(w) > 0, 0.9 * m + 0.1 * g, m)),
}


@pytest.mark.parametrize("form", FORMS)
def test_assignments_of_every_form(form):
    def build(w):
        g, m = w * 2.0, slot("m")
        with tf.control_dependencies([FORMS[form](w, g, m)]):
            w.assign_sub(m.read_value() * 0.1)

    assert moments_of(build) == {"m"}


def test_assignments_within_a_condition_are_found():
    def build(w):
        m, decay = slot("m"), tf.constant(0.9)

        def update():
            new = decay * m + 0.1 * w
            with tf.control_dependencies([new]):
                return tf.group(m.assign(new), w.assign(w - new))

        tf.cond(tf.reduce_sum(w) > 0, update, tf.no_op)

    assert moments_of(build) == {"m"}


def test_similar_variables_are_no_moments():
    def build(w):
        g = w * 2.0
        average, largest, whole = slot("average"), slot("largest"), slot("half", (3, 4), tf.float64)
        tf.compat.v1.assign(average, 0.9 * average + 0.1 * w)  # of weights: no update reads it
        seen = tf.maximum(largest, tf.abs(g))
        largest.assign(seen)
        doubled = 0.9 * whole + tf.cast(g, tf.float64)
        whole.assign(doubled)
        grown = slot("grown")
        grown.assign(1.0 * grown + g)
        totals, _, _ = accumulate([g], [w], 2)
        w.assign(w - 0.1 * totals[0] / (seen + 1e-3) - grown - tf.cast(doubled, tf.float32))

    assert moments_of(build) == set()


def test_a_variable_decay_makes_no_moment():
    def build(w):
        m, decay = slot("m"), slot("decay", ())
        new = decay * m + w
        m.assign(new)
        w.assign(w - new)

    assert moments_of(build) == set()
