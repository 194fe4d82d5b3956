"""Building and running networks."""

from __future__ import annotations

import copy
import hashlib
import pickle
import threading

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    InvalidInputError,
    InvalidNetworkError,
    Layer,
    Network,
    NetworkBuilder,
    NumericInstability,
    ShapeTooLargeError,
    SizeMismatchError,
    available_isas,
    set_num_threads,
)
from lattice_fann.training.reference import ReferenceNetwork

EVERY_ACTIVATION = [
    Activation.LINEAR,
    Activation.SIGMOID,
    Activation.TANH,
    Activation.RELU,
    Activation.LEAKY_RELU,
    Activation.GELU,
    Activation.SILU,
]


def activation_id(activation: object) -> str | None:
    return activation.name if isinstance(activation, Activation) else None


# SHA-256 of the outputs, from AVX2; AVX-512 and NEON, both emulated, gave the same
RECORDED_BITS = {
    Activation.GELU: "0fbd8f482ebdeaa8",
    Activation.SILU: "b49f6d3171ad14ec",
    Activation.TANH: "cad8b5dc984eded5",
    Activation.SIGMOID: "17d6dd7fe8f7d464",
    Activation.LEAKY_RELU: "ebd420a0b26cc4ba",
}


def exact(network: Network, x: np.ndarray) -> np.ndarray:
    return ReferenceNetwork.of(network).forward(np.atleast_2d(x).astype(np.float64))[0][-1]


def random_network(hidden: Activation, output: Activation = Activation.LINEAR, isa: str | None = None) -> Network:
    network = NetworkBuilder().input(37).hidden(50, hidden).hidden(19, hidden).output(5, output).build(seed=3, isa=isa)
    for i, layer in enumerate(network.layers):
        layer.biases = np.random.RandomState(i).standard_normal(layer.num_outputs) * 0.3
    return network


def test_readme_network_names_its_architecture(network: Network) -> None:
    assert network.architecture() == "784 -> ReLU(128) -> ReLU(64) -> Softmax(10)"
    assert network.total_params == 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    assert (network.num_inputs, network.num_outputs, len(network.layers)) == (784, 10, 3)


@pytest.mark.parametrize("output", [*EVERY_ACTIVATION, Activation.SOFTMAX], ids=activation_id)
@pytest.mark.parametrize("hidden", EVERY_ACTIVATION, ids=activation_id)
def test_forward_agrees_with_float64(hidden: Activation, output: Activation, isa: str) -> None:
    network = random_network(hidden, output, isa)
    x = np.random.RandomState(0).standard_normal((23, 37)).astype(np.float32)
    wanted = exact(network, x)
    assert np.abs(network.forward_batch(x) - wanted).max() <= 2e-6 * max(1.0, np.abs(wanted).max())


def test_a_row_has_the_same_bits_alone_and_in_any_batch_on_any_threads(network: Network, isa: str) -> None:
    mine = Network(network.layers, isa=isa)
    x = np.random.RandomState(1).standard_normal((301, 784)).astype(np.float32)
    alone = np.array([mine.forward(row) for row in x])
    for threads in (1, 2, 3):
        set_num_threads(threads)
        for rows in (1, 2, 5, 6, 7, 12, 13, 64, 301):
            assert (mine.forward_batch(x[:rows]) == alone[:rows]).all()


def test_instruction_sets_with_fused_multiply_add_agree_in_bits(network: Network) -> None:
    x = np.random.RandomState(1).standard_normal((10, 784)).astype(np.float32)
    levels = [isa for isa in available_isas() if isa != "baseline"]
    results = [Network(network.layers, isa=isa).forward_batch(x) for isa in levels]
    assert all((result == results[0]).all() for result in results)


def test_forward_writes_into_out_and_returns_it(network: Network) -> None:
    x = np.random.RandomState(1).standard_normal(784).astype(np.float32)
    out = np.empty(10, dtype=np.float32)
    assert network.forward(x, out) is out
    assert (out == network.forward(x)).all()
    batch = np.empty((2, 10), dtype=np.float32)
    assert network.forward_batch([x, x], out=batch) is batch
    assert (batch == out).all()


def test_softmax_sums_to_one_even_at_extremes() -> None:
    network = Network([Layer(np.eye(4), np.zeros(4), Activation.SOFTMAX)])
    for x in ([1e4, -1e4, 0, 1], [0, 0, 0, 0], [-1e30, -1e30, -1e30, -1e30], [88, 89, 90, 91]):
        y = network.forward(x)
        assert np.isfinite(y).all()
        assert y.sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("activation", "at_minus", "at_plus"),
    [
        (Activation.SIGMOID, 0.0, 1.0),
        (Activation.TANH, -1.0, 1.0),
        (Activation.GELU, 0.0, 1e4),
        (Activation.SILU, 0.0, 1e4),
    ],
    ids=activation_id,
)
def test_bounded_activations_keep_their_limits(
    activation: Activation, at_minus: float, at_plus: float, isa: str
) -> None:
    network = Network([Layer([[1.0], [-1.0]], [0.0, 0.0], activation)], isa=isa)
    assert network.forward([1e4]).tolist() == [at_plus, at_minus]


@pytest.mark.parametrize("activation", EVERY_ACTIVATION, ids=activation_id)
@pytest.mark.parametrize("width", [3, 16, 21])
def test_a_value_that_is_not_finite_is_named_on_every_instruction_set(
    activation: Activation, width: int, isa: str
) -> None:
    """The reference's AVX2 ReLU turned NaN into 0 in vector lanes and kept it in the scalar tail."""
    for position in range(width):
        layers = [
            Layer(np.ones((4, 2)) * 0.1, np.zeros(4), Activation.TANH),
            Layer(np.ones((width, 4)), np.zeros(width), activation),
            Layer(np.ones((2, width)), np.zeros(2)),
        ]
        network = Network(layers, isa=isa)
        network.layers[1].weights[position, 1] = np.nan
        with pytest.raises(NumericInstability, match=f"value {position} of the output of layer 1") as caught:
            network.forward([1.0, 2.0])
        assert (caught.value.layer, caught.value.index, caught.value.row) == (1, position, None)


def test_an_infinite_sum_is_caught(isa: str) -> None:
    network = Network([Layer([[3e38, 3e38], [1, 1]], [0, 0], Activation.RELU)], isa=isa)
    with pytest.raises(NumericInstability, match="layer 0"):
        network.forward([10.0, 10.0])


def test_batches_name_the_first_bad_row(network: Network) -> None:
    x = np.zeros((500, 784), dtype=np.float32)
    x[317, 5] = np.nan
    x[400, 1] = np.inf
    for threads in (1, 2):
        set_num_threads(threads)
        with pytest.raises(NumericInstability, match="value 5 of row 317 of the input") as caught:
            network.forward_batch(x)
        assert (caught.value.layer, caught.value.row) == (None, 317)
    assert pickle.loads(pickle.dumps(caught.value)).row == 317


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(783), "783 values, the network takes 784"),
        (np.zeros((1, 784)), "one row"),
        (["a"] * 784, "numbers"),
        (np.zeros(784, dtype=complex), "complex"),
        ([[1.0], [1.0, 2.0]], "numbers"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(network: Network, x: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        network.forward(x)


def test_out_arrays_that_do_not_fit_are_refused(network: Network) -> None:
    x = np.zeros(784, dtype=np.float32)
    read_only = np.empty(10, dtype=np.float32)
    read_only.flags.writeable = False
    for out in (np.empty(10), np.empty(20, dtype=np.float32)[::2], np.empty(9, dtype=np.float32), read_only):
        with pytest.raises(InvalidInputError):
            network.forward(x, out)


def test_an_empty_batch_gives_no_rows(network: Network) -> None:
    assert network.forward_batch(np.empty((0, 784))).shape == (0, 10)


def test_other_dtypes_and_strides_are_converted(network: Network) -> None:
    x = np.random.RandomState(0).randint(0, 3, (784, 2))
    assert (network.forward(x[:, 1]) == network.forward(x[:, 1].astype(np.float32))).all()
    assert (network.forward(x[:, 1].astype(">f4")) == network.forward(x[:, 1].tolist())).all()


def test_weights_are_views_of_the_network(network: Network) -> None:
    layer = network.layers[1]
    assert layer.weights.shape == (64, 128)
    assert layer.biases.shape == (64,)
    before = network.forward(np.ones(784))
    layer.weights[:] = 0.5
    layer.biases[3] = 2.0
    assert not (network.forward(np.ones(784)) == before).all()
    assert network.layers[1].weights[0, 0] == 0.5
    layer.weights = np.zeros((64, 128))
    assert (network.layers[1].weights == 0).all()


@pytest.mark.parametrize("bad", [np.zeros((128, 64)), np.full((64, 128), np.nan), np.full((64, 128), 1e300)])
def test_weights_that_do_not_fit_leave_the_layer_alone(network: Network, bad: np.ndarray) -> None:
    before = network.layers[1].weights.copy()
    with pytest.raises((SizeMismatchError, InvalidNetworkError)):
        network.layers[1].weights = bad
    assert (network.layers[1].weights == before).all()


def test_one_seed_gives_one_network() -> None:
    def build(seed: int | None) -> bytes:
        return NetworkBuilder().input(5).dense(7).output(3, Activation.SOFTMAX).build(seed=seed).to_bytes()

    assert build(1) == build(1)
    assert build(1) != build(2)
    assert build(None) != build(None)


def test_seeded_weights_never_change() -> None:
    """A release that changes what a seed means must say so."""
    weights = NetworkBuilder().input(2).output(2).build(seed=0).layers[0].weights
    assert weights.ravel().tolist() == pytest.approx(
        [-1.294930100440979, -0.12540847063064575, 0.027067484334111214, -0.2849298417568207], rel=1e-6
    )


def test_xavier_weights_have_their_variance() -> None:
    weights = NetworkBuilder().input(300).output(200).build(seed=0).layers[0].weights
    assert weights.std() == pytest.approx((2 / 500) ** 0.5, rel=0.02)
    uniform = NetworkBuilder().input(300).output(200).build(seed=0, initialization="he_uniform").layers[0].weights
    assert uniform.std() == pytest.approx((2 / 300) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NetworkBuilder().output(3).build(), "number of inputs"),
        (lambda: NetworkBuilder().input(3).build(), "no layers"),
        (lambda: NetworkBuilder().input(0).output(3).build(), "at least 1"),
        (lambda: NetworkBuilder().input(3).output(-1).build(), "at least 1"),
        (lambda: NetworkBuilder().input(3.5).output(1).build(), "integer"),  # type: ignore[arg-type]
        (lambda: NetworkBuilder().input(3).hidden(4, Activation.SOFTMAX).output(1).build(), "only the last"),
        (lambda: Network([]), "at least one layer"),
        (lambda: Network([Layer(np.ones((2, 3)), [0, 0]), Layer(np.ones((2, 3)), [0, 0])]), "layer 1 takes 3"),
        (lambda: Layer(np.full((2, 2), np.inf), [0, 0]), "not finite"),
    ],
)
def test_impossible_networks_are_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(InvalidNetworkError, match=message):
        build()


def test_huge_layers_are_refused_before_memory_is_asked_for() -> None:
    with pytest.raises(ShapeTooLargeError, match="100000000"):
        NetworkBuilder().input(2**40).output(2**40).build()


def test_input_scaling_is_part_of_the_network(network: Network) -> None:
    x = np.random.RandomState(0).standard_normal((50, 784)) * 3 + 5
    plain = network.copy()
    network.fit_input_scaling(x)
    scaling = network.input_scaling
    assert scaling is not None
    scaled = ((x.astype(np.float32) - scaling.mean) * scaling.scale).astype(np.float32)
    assert abs(scaled.mean()) < 1e-5
    assert scaled.std() == pytest.approx(1, abs=1e-3)
    assert (network.forward_batch(x) == plain.forward_batch(scaled)).all()
    assert (network.forward(x[0]) == plain.forward(scaled[0])).all()
    network.input_scaling = None
    assert (network.forward_batch(scaled) == plain.forward_batch(scaled)).all()


def test_a_constant_column_is_only_centred() -> None:
    network = NetworkBuilder().input(2).output(1).build(seed=0)
    network.fit_input_scaling([[5, 1], [5, 3]])
    assert network.input_scaling is not None
    assert network.input_scaling.scale[0] == 1
    assert network.input_scaling.mean.tolist() == [5, 2]


@pytest.mark.parametrize("unit", [1e-30, 1e-13, 1e30])
def test_input_scaling_works_in_any_unit(unit: float) -> None:
    network = NetworkBuilder().input(2).output(1).build(seed=0)
    network.fit_input_scaling([[unit, 1], [3 * unit, 1]])
    assert network.input_scaling is not None
    assert network.input_scaling.scale[0] == pytest.approx(1 / unit, rel=1e-6)
    assert network.input_scaling.mean[0] == pytest.approx(2 * unit, rel=1e-6)


def test_layer_outputs_show_every_layer(network: Network) -> None:
    x = np.random.RandomState(0).standard_normal(784).astype(np.float32)
    values = ReferenceNetwork.of(network).forward(x[None].astype(np.float64))[0]
    outputs = network.layer_outputs(x)
    assert [output.shape for output in outputs] == [(128,), (64,), (10,)]
    for output, wanted in zip(outputs, values[1:], strict=True):
        assert np.abs(output - wanted[0]).max() < 1e-5
    assert (outputs[-1] == network.forward(x)).all()


def test_a_layer_runs_alone() -> None:
    layer = Layer.create(3, 2, Activation.TANH, seed=1)
    x = np.array([0.1, 0.2, 0.3])
    assert layer.forward(x) == pytest.approx(np.tanh(layer.weights @ x), rel=1e-6)


def test_copies_and_pickles_are_networks_of_their_own(network: Network) -> None:
    network.fit_input_scaling(np.random.RandomState(0).rand(9, 784))
    network.metadata = {"made by": "a test"}
    x = np.ones(784)
    for twin in (network.copy(), copy.copy(network), copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert (twin.forward(x) == network.forward(x)).all()
        assert twin.metadata == network.metadata
        before = network.forward(x)
        twin.layers[0].weights[:] = 0
        assert (network.forward(x) == before).all()


def test_many_threads_may_run_one_network(network: Network) -> None:
    x = np.random.RandomState(0).standard_normal((64, 784)).astype(np.float32)
    wanted = network.forward_batch(x)
    failures: list[int] = []

    def work(offset: int) -> None:
        for i in range(200):
            row = (i + offset) % 64
            if not (network.forward(x[row]) == wanted[row]).all():
                failures.append(row)
            if i % 20 == 0 and not (network.forward_batch(x) == wanted).all():
                failures.append(-1)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_activation_names_are_understood() -> None:
    assert Activation.from_name("relu") == Activation.RELU
    assert Activation.from_name("Leaky_ReLU", 0.2) == Activation.leaky_relu(0.2)
    assert Activation.from_name("logistic") == Activation.SIGMOID
    with pytest.raises(InvalidInputError, match="there is no activation"):
        Activation.from_name("relu6")
    for alpha in (float("nan"), float("inf"), 1e300):
        with pytest.raises(InvalidInputError, match="alpha"):
            Activation.leaky_relu(alpha)


def test_an_instruction_set_this_machine_lacks_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no instruction set named"):
        NetworkBuilder().input(1).output(1).build(isa="mmx")


def test_the_bits_of_a_forward_pass_are_those_on_record(isa: str) -> None:
    """A release that changes bits must say so. Levels without fused multiply-add differ in the last ones."""
    if isa == "baseline":
        pytest.skip("the baseline rounds products")
    x = np.random.RandomState(0).standard_normal((50, 100)).astype(np.float32)
    for activation, wanted in RECORDED_BITS.items():
        builder = NetworkBuilder().input(100).hidden(70, activation).hidden(33, activation)
        y = builder.output(4, Activation.SOFTMAX).build(seed=0, isa=isa).forward_batch(x)
        assert hashlib.sha256(y.tobytes()).hexdigest()[:16] == wanted, activation
