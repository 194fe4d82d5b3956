# The settings of an optimizer, and one update of parameters that belong to no network; a part of _engine.pyx.

cdef void set_optimizer(
    fann_optimizer *optimizer, int kind, double learning_rate, float momentum, double beta1, double beta2, float epsilon,
    double weight_decay, double correction1, double correction2_root, float gradient_scale, float gradient_limit,
) noexcept:
    optimizer.kind = kind
    optimizer.learning_rate = learning_rate
    optimizer.momentum = momentum
    optimizer.beta2 = beta2
    optimizer.rest1 = 1.0 - beta1
    optimizer.rest2 = 1.0 - beta2
    optimizer.epsilon = epsilon
    optimizer.weight_decay = weight_decay
    optimizer.step_size = learning_rate / correction1
    optimizer.keep = 1.0 - learning_rate * weight_decay
    optimizer.correction2_root = correction2_root
    optimizer.gradient_scale = gradient_scale
    optimizer.gradient_limit = gradient_limit


def update_flat(
    int kind, double learning_rate, parameters, gradients, moment1, moment2, *, float momentum=0.0, double beta1=0.9,
    double beta2=0.999, float epsilon=1e-8, double weight_decay=0.0, double correction1=1.0, double correction2_root=1.0,
    float gradient_scale=1.0, isa=None,
):
    """Move parameters of no network along their gradients.

    All are float32 vectors of a multiple of 16 numbers.
    """
    cdef const fann_kernel_table *table = table_of(isa)
    cdef fann_optimizer optimizer
    cdef Py_ssize_t count = parameters.size if isinstance(parameters, np.ndarray) else 0
    cdef float *pointers[4]
    for place, array in enumerate((parameters, gradients, moment1, moment2)):
        if not (isinstance(array, np.ndarray) and array.dtype == np.float32 and array.ndim == 1
                and array.flags.c_contiguous and array.size == count and count % 16 == 0
                and (array.flags.writeable or place == 1)):
            raise InvalidInputError("parameters, gradients and moments must be float32 vectors of one size, a multiple of 16")
        pointers[place] = data(array)
    memset(&optimizer, 0, sizeof(optimizer))
    set_optimizer(&optimizer, kind, learning_rate, momentum, beta1, beta2, epsilon, weight_decay, correction1,
                  correction2_root, gradient_scale, float("inf"))
    with nogil:
        fann_update_flat(&optimizer, table, pointers[0], pointers[1], pointers[2], pointers[3], count)
