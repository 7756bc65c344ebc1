"""Counted operations against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fedjax_nc import flops, models
from fedjax_nc.types import HeadSpec

A, B = jnp.ones((3, 4)), jnp.ones((4, 5))
PRODUCT = 2 * 3 * 4 * 5


def test_matrix_product_counts_two_operations_per_multiply_add():
    assert flops.count(jnp.dot, A, B) == PRODUCT
    assert flops.count(lambda a: a + jnp.sin(a), A) == 0
    assert flops.count(lambda a, b: jnp.einsum("nij,njk->nik", a, b), A[None], B[None]) == PRODUCT


def test_product_inside_jit_is_seen():
    assert flops.count(jax.jit(jnp.dot), A, B) == PRODUCT


def test_scan_multiplies_its_length():
    def seven(b):
        return lax.scan(lambda carry, _: (carry @ b, None), jnp.ones((2, 4)), length=7)[0]

    assert flops.count(seven, jnp.ones((4, 4))) == 7 * 2 * 2 * 4 * 4


def test_nested_scans_multiply():
    def inner(carry, _):
        return lax.scan(lambda c, _: (c @ jnp.eye(4), None), carry, length=3)[0], None

    count = flops.count(lambda x: lax.scan(inner, x, length=5)[0], jnp.ones((2, 4)))
    assert count == 5 * 3 * 2 * 2 * 4 * 4


def test_fori_loop_with_known_length_counts():
    def eight(b):
        return lax.fori_loop(0, 8, lambda _, x: x @ b, jnp.ones((2, 4)))

    assert flops.count(eight, jnp.ones((4, 4))) == 8 * 2 * 2 * 4 * 4


def test_vmap_multiplies_the_batch():
    many = jax.vmap(jnp.dot, (0, None))
    assert flops.count(many, jnp.ones((6, 3, 4)), B) == 6 * PRODUCT


def test_gradient_costs_two_more_products():
    def loss(a, b):
        return ((a @ b) ** 2).sum()

    assert flops.count(jax.grad(loss, (0, 1)), A, B) == 3 * PRODUCT
    assert flops.count(jax.grad(loss), A, B) == 2 * PRODUCT


@pytest.mark.parametrize("stride, side", [(1, 28), (2, 14)])
def test_convolution_counts_outputs_times_kernel(stride, side):
    x, kernel = jnp.ones((2, 32, 32, 3)), jnp.ones((5, 5, 3, 6))

    def conv(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), "VALID", dimension_numbers=layout
        )

    assert flops.count(conv, x, kernel) == 2 * (2 * side * side * 6) * (5 * 5 * 3)


@pytest.mark.parametrize("stride, padding", [(1, "VALID"), (1, "SAME"), (2, "VALID")])
def test_gradients_of_a_convolution_cost_as_much_as_itself(stride, padding):
    x, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 6))

    def loss(x, kernel):
        y = lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(y**2)

    forward = flops.count(loss, x, kernel)
    assert flops.count(jax.grad(loss, (0, 1)), x, kernel) == 3 * forward
    assert flops.count(jax.grad(loss, 1), x, kernel) == 2 * forward


def test_what_the_result_ignores_is_left_out():
    assert flops.count(lambda a, b: (a @ b, a)[1], A, B) == 0


def test_grouped_convolution_counts_its_own_inputs_only():
    x, kernel = jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 1, 4))

    def conv(x, kernel):
        return lax.conv_general_dilated(
            x,
            kernel,
            (1, 1),
            "SAME",
            feature_group_count=4,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    assert flops.count(conv, x, kernel) == 2 * (8 * 8 * 4) * 9


def test_cond_takes_the_larger_branch():
    def either(flag, x):
        return lax.cond(flag, lambda x: x @ jnp.eye(4), lambda x: x @ jnp.eye(4) @ jnp.eye(4), x)

    assert flops.count(either, True, jnp.ones((2, 4))) == 2 * (2 * 2 * 4 * 4)


def test_while_with_products_is_refused_and_without_is_nothing():
    def loop(body):
        return lambda x: lax.while_loop(lambda x: x.sum() < 100, body, x)

    with pytest.raises(ValueError, match="while"):
        flops.count(loop(lambda x: x @ jnp.eye(4)), jnp.ones((2, 4)))
    assert flops.count(loop(lambda x: x + 1), jnp.ones((2, 4))) == 0


CIFAR_CNN = (
    28 * 28 * 6 * 5 * 5 * 3  # 32 - 4, then pooled to 14
    + 10 * 10 * 16 * 5 * 5 * 6  # 14 - 4, then pooled to 5
    + 5 * 5 * 16 * 256
    + 256 * 128
    + 128 * 10
)


@pytest.mark.parametrize("conv", ["native", "canonical"])
def test_forward_pass_of_the_cifar_network(conv):
    model = models.build("cnn", (32, 32, 3), 10, HeadSpec(), conv=conv)
    weights = jax.eval_shape(model.init, jax.random.key(0))

    def forward(weights, x):
        key, mask = jax.random.key(0), jnp.ones(4, bool)
        return model.apply(weights, x, train=False, mask=mask, key=key)

    assert flops.count(forward, weights, jnp.ones((4, 32, 32, 3))) == 2 * 4 * CIFAR_CNN
