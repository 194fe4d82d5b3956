"""Binding of the C kernels: argument checks and memory, then one call."""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
cimport numpy as cnp

import numpy as np

from lattice_fann.arguments import shown
from lattice_fann.arrays import float32_of, number_array
from lattice_fann.errors import InvalidInputError, NumericInstability, SizeMismatchError

cnp.import_array()

REFUSED = InvalidInputError
include "lattice/binding.pxi"

cdef extern from "network.h" nogil:
    int FANN_PANEL
    ctypedef struct fann_layer:
        int64_t inputs, outputs, stride
        float *weights
        float *biases
        int activation
        float alpha
    ctypedef struct fann_network:
        const fann_layer *layers
        int64_t count
        const float *input_mean
        const float *input_scale
        int64_t widest
    ctypedef struct fann_fault:
        int64_t layer, row, index
    ctypedef struct fann_layer_state:
        int64_t stride
        float *sums
        float *outputs
        float *deltas
        float *weight_gradient
        float *bias_gradient
        float *weights_by_output
        int64_t input_stride
    ctypedef struct fann_block:
        int64_t layer, first, rows
    ctypedef struct fann_optimizer:
        int kind
        float learning_rate, momentum, beta2, rest1, rest2, epsilon, weight_decay, step_size, correction2_root, keep
        float gradient_scale, gradient_limit, shrink, grow, smallest_step, largest_step
        int decay_biases
    ctypedef struct fann_step:
        const fann_network *network
        const fann_layer_state *states
        const fann_block *blocks
        int64_t block_count
        const float *inputs
        const float *targets
        const int64_t *order
        const float *row_weights
        int64_t rows, row_tasks
        float *x
        int64_t x_stride
        float *row_losses
        int loss
        float loss_parameter
        float hard_share
        uint32_t drop_seed
        uint32_t drop_below
        float keep_scale
        int *row_faults
        double *block_squares
        int *block_faults
        int sanitize
        fann_optimizer optimizer
        float *parameters
        float *gradients
        float *moment1
        float *moment2
    ctypedef struct fann_kernel_table:
        int tile_rows
        void (*row_losses)(int loss, float parameter, float hard_share, const float *sums, const float *outputs,
                           const float *targets, int64_t n, int64_t rows, float *losses)
        void (*activation)(int activation, float alpha, const float *z, float *y, int64_t rows, int64_t n, int64_t stride)
    int64_t fann_padded(int64_t n)
    int64_t fann_divide_up(int64_t a, int64_t b)

cdef extern from "run.h" nogil:
    const fann_kernel_table *fann_kernels(int isa)
    int fann_forward_one(const fann_network *network, const fann_kernel_table *table, const float *x, float *y,
                         fann_fault *fault)
    int fann_forward_batch(const fann_network *network, const fann_kernel_table *table, lattice_pool *, const float *x,
                           int64_t rows, float *y, fann_fault *fault)
    int fann_gradient(const fann_step *step, const fann_kernel_table *table, lattice_pool *, int threads, double *loss,
                      double *squares, fann_fault *fault)
    void fann_update(const fann_step *step, const fann_kernel_table *table, lattice_pool *, int threads)
    void fann_update_flat(const fann_optimizer *optimizer, const fann_kernel_table *table, float *parameters,
                          const float *gradients, float *moment1, float *moment2, int64_t count)


cdef int64_t LONG_CALL = 1 << 20  # multiply-adds from which one row is worth releasing the GIL
cdef int64_t BLOCK_FLOATS = 1 << 14  # of a layer's weights in one task of training
cdef int64_t TASK_ROWS = 64  # most rows of a batch in one task of training
cdef int64_t FEWEST_ROWS = 12  # fewest rows worth a separate task


cdef bint has_kernels(int isa):
    return fann_kernels(isa) != NULL


def select_isa(requested=None):
    """Return the instruction set to use: ``requested``, else ``LATTICE_ISA``, else the best one.

    Raises InvalidInputError for an unknown name and for a level that this CPU or this build cannot run.
    """
    if requested is not None and not (isinstance(requested, str) and requested.isascii()):
        raise InvalidInputError(f"isa is {shown(requested)}; take one of {', '.join(available_isas())}, or None")
    return lattice_isa_name(level_of(requested)).decode()


def padded(int64_t n):
    """Return the row stride of a layer of ``n`` outputs: ``n`` rounded up to whole panels."""
    return fann_padded(n)


cdef const fann_kernel_table *table_of(str isa) except NULL:
    return fann_kernels(level_of(isa))


def aligned_zeros(Py_ssize_t floats):
    """Return a zeroed float32 array whose data starts at a multiple of 64 bytes."""
    memory = np.zeros(floats + 16, dtype=np.float32)
    cdef Py_ssize_t skip = (-<Py_ssize_t>cnp.PyArray_DATA(<cnp.ndarray>memory) % 64 + 64) % 64 // 4
    return memory[skip : skip + floats]


cdef inline bint is_plain(object array, int dimensions):
    """Whether ``array`` can be read in place.

    It must be float32, C-contiguous, aligned, native, and of no subclass with a mask.
    """
    return (
        cnp.PyArray_CheckExact(array)
        and cnp.PyArray_NDIM(<cnp.ndarray>array) == dimensions
        and cnp.PyArray_TYPE(<cnp.ndarray>array) == cnp.NPY_FLOAT32
        and cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>array)
    )


cdef object as_float32(object values, int dimensions, str name):
    """``values`` as a C-contiguous float32 array of ``dimensions`` axes."""
    given = number_array(values, name)
    if given.ndim != dimensions:
        shape = "one row, shape (inputs,)" if dimensions == 1 else "rows, shape (rows, columns)"
        raise SizeMismatchError(f"{name} must be {shape}; its shape is {given.shape}")
    return float32_of(given)  # what is too large for float32 is caught as not finite


cdef float *data(object array):
    return <float *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef class Engine:
    """The memory and the forward pass of a network.

    :class:`lattice_fann.Network` is the public class over it.
    """

    cdef fann_layer *layers
    cdef fann_layer *linear_layers  # the same, the last one without its activation
    cdef fann_network network
    cdef const fann_kernel_table *table
    cdef bint long_call
    cdef readonly object parameters
    cdef readonly str isa
    cdef object scaling

    def __cinit__(self, *arguments, **options):
        self.layers = self.linear_layers = NULL
        memset(&self.network, 0, sizeof(self.network))

    def __dealloc__(self):
        free(self.layers)
        free(self.linear_layers)

    def _allocate(self, widths, activations, isa):
        """Make the layers.

        ``widths`` has one entry more than ``activations``, which are (tag, alpha).
        """
        cdef int64_t total = 0, work = 0, offset = 0
        cdef Py_ssize_t count = len(activations), l
        if self.layers != NULL:
            raise RuntimeError("a network is made once")
        self.isa = select_isa(isa)
        self.table = table_of(self.isa)
        self.layers = <fann_layer *>calloc(count, sizeof(fann_layer))
        self.linear_layers = <fann_layer *>calloc(count, sizeof(fann_layer))
        if self.layers == NULL or self.linear_layers == NULL:
            raise MemoryError
        self.network.widest = FANN_PANEL
        for l in range(count):
            self.layers[l].inputs = widths[l]
            self.layers[l].outputs = widths[l + 1]
            self.layers[l].stride = fann_padded(widths[l + 1])
            self.layers[l].activation = activations[l][0]
            self.layers[l].alpha = activations[l][1]
            total += (self.layers[l].inputs + 1) * self.layers[l].stride
            work += self.layers[l].inputs * self.layers[l].stride
            self.network.widest = max(self.network.widest, self.layers[l].stride)
        self.long_call = work >= LONG_CALL
        self.parameters = aligned_zeros(total)
        for l in range(count):
            self.layers[l].weights = data(self.parameters) + offset
            offset += self.layers[l].inputs * self.layers[l].stride
            self.layers[l].biases = data(self.parameters) + offset
            offset += self.layers[l].stride
            self.linear_layers[l] = self.layers[l]
        self.linear_layers[count - 1].activation = 0
        self.network.layers = self.layers
        self.network.count = count

    def _set_input_scaling(self, mean, scale):
        """Scale inputs as (x - mean) * scale, or not at all for None."""
        if mean is None:
            self.scaling = None
            self.network.input_mean = self.network.input_scale = NULL
            return
        mean = as_float32(mean, 1, "mean").copy()
        scale = as_float32(scale, 1, "scale").copy()
        if mean.size != self.layers[0].inputs or scale.size != mean.size:
            raise SizeMismatchError(f"mean and scale have {mean.size} and {scale.size} values, the network {self.layers[0].inputs} inputs")
        self.scaling = (mean, scale)
        self.network.widest = max(self.network.widest, fann_padded(self.layers[0].inputs))
        self.network.input_mean = data(mean)
        self.network.input_scale = data(scale)

    def _input_scaling(self):
        """Return (mean, scale), or None."""
        return self.scaling

    def _views(self, object whole, Py_ssize_t l):
        """Return layer ``l``'s weights (outputs, inputs) and biases as views of a flat array.

        The array has the layout of the parameters.
        """
        cdef const fann_layer *layer = &self.layers[l]
        cdef Py_ssize_t start = layer.weights - data(self.parameters)
        cdef Py_ssize_t end = start + layer.inputs * layer.stride
        weights = whole[start:end].reshape(layer.inputs, layer.stride)[:, : layer.outputs].T
        return weights, whole[end : end + layer.outputs]

    cdef int ready(self) except -1:
        if self.network.count == 0:
            raise RuntimeError("Network.__init__ was not called")
        return 0

    cdef object instability(self, fann_fault fault, bint batch):
        layer = None if fault.layer < 0 else fault.layer
        return NumericInstability(layer, fault.index, fault.row if batch else None)

    def forward(self, x, out=None):
        """Return the network's outputs for one sample.

        Args:
            x: (inputs,) float32; other numbers and sequences are converted.
            out: (outputs,) C-contiguous float32 to write to, so that nothing is allocated.

        Raises:
            SizeMismatchError: the wrong number of inputs or outputs.
            NumericInstability: an input or a layer's output is not finite. ``out`` is then as it was.
        """
        cdef fann_fault fault
        cdef int status
        cdef cnp.npy_intp size
        cdef const float *source
        cdef float *target
        self.ready()
        if not is_plain(x, 1):
            x = as_float32(x, 1, "x")
        if cnp.PyArray_SIZE(<cnp.ndarray>x) != self.layers[0].inputs:
            raise SizeMismatchError(f"x has {x.size} values, the network takes {self.layers[0].inputs}")
        if out is None:
            size = self.layers[self.network.count - 1].outputs
            out = cnp.PyArray_EMPTY(1, &size, cnp.NPY_FLOAT32, 0)
        else:
            self.check_out(out, 1)
            if out.size != self.layers[self.network.count - 1].outputs:
                raise SizeMismatchError(
                    f"out has {out.size} values, the network gives {self.layers[self.network.count - 1].outputs}"
                )
        source = data(x)
        target = data(out)
        if self.long_call:
            with nogil:
                status = fann_forward_one(&self.network, self.table, source, target, &fault)
        else:
            status = fann_forward_one(&self.network, self.table, source, target, &fault)
        if status == 1:
            return out
        if status < 0:
            raise MemoryError("no memory for the activations")
        raise self.instability(fault, False)

    def forward_batch(self, x, out=None):
        """Return the network's outputs for many samples, (rows, outputs).

        Each row is bit-identical to ``forward``'s.

        Args:
            x: (rows, inputs) float32; other numbers and sequences are converted.
            out: (rows, outputs) C-contiguous float32 to write to.

        Raises:
            SizeMismatchError: the wrong number of inputs, outputs or rows.
            NumericInstability: an input or a layer's output is not finite; rows of ``out`` may have been written.
        """
        return self.run_batch(x, out, False)

    def _sums_batch(self, x):
        """Return the sums of the last layer, before its activation, for many samples."""
        return self.run_batch(x, None, True)

    cdef object run_batch(self, object x, object out, bint sums):
        cdef fann_fault fault
        cdef int status
        cdef cnp.npy_intp shape[2]
        cdef const float *source
        cdef float *target
        cdef int64_t rows
        cdef fann_network network
        self.ready()
        if not is_plain(x, 2):
            x = as_float32(x, 2, "x")
        if x.shape[1] != self.layers[0].inputs:
            raise SizeMismatchError(f"x has {x.shape[1]} columns, the network takes {self.layers[0].inputs}")
        rows = shape[0] = x.shape[0]
        shape[1] = self.layers[self.network.count - 1].outputs
        if out is None:
            out = cnp.PyArray_EMPTY(2, shape, cnp.NPY_FLOAT32, 0)
        else:
            self.check_out(out, 2)
            if out.shape[0] != shape[0] or out.shape[1] != shape[1]:
                raise SizeMismatchError(f"out has shape {out.shape}, the result ({shape[0]}, {shape[1]})")
        source = data(x)
        target = data(out)
        network = self.network
        if sums:
            network.layers = self.linear_layers
        with nogil:
            status = fann_forward_batch(&network, self.table, pool, source, rows, target, &fault)
        if status == 1:
            return out
        if status < 0:
            raise MemoryError(f"no memory for the activations of {rows} rows")
        raise self.instability(fault, True)

    cdef int check_out(self, object out, int dimensions) except -1:
        plain = out
        if isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray):
            plain = np.asarray(out)  # a memory map may be written to, a mask would not follow
        if not is_plain(plain, dimensions) or not cnp.PyArray_ISWRITEABLE(<cnp.ndarray>plain):
            raise InvalidInputError(f"out must be a writable C-contiguous float32 array of {dimensions} dimension(s)")
        return 0


cdef class StepEngine:
    """Loss, gradient and update of a network on mini-batches of a data set.

    Used by one thread at a time.
    """

    cdef Engine engine
    cdef fann_step step
    cdef fann_layer_state *states
    cdef fann_block *blocks
    cdef int64_t most_rows
    cdef bint busy
    cdef list memory
    cdef readonly object gradients
    cdef readonly object moment1
    cdef readonly object moment2

    def __cinit__(
        self, Engine engine not None, int64_t most_rows, int loss, float loss_parameter, float hard_share=0.0
    ):
        cdef int64_t l, first, rows, count = 0
        cdef const fann_layer *layer
        engine.ready()
        self.engine = engine
        self.memory = []
        self.most_rows = most_rows
        self.states = <fann_layer_state *>calloc(engine.network.count, sizeof(fann_layer_state))
        for l in range(engine.network.count):
            count += fann_divide_up(engine.layers[l].inputs, self.block_rows(l))
        self.blocks = <fann_block *>calloc(count, sizeof(fann_block))
        if self.states == NULL or self.blocks == NULL:
            raise MemoryError
        memset(&self.step, 0, sizeof(self.step))
        self.gradients = aligned_zeros(engine.parameters.size)
        self.moment1 = aligned_zeros(engine.parameters.size)
        self.moment2 = aligned_zeros(engine.parameters.size)
        count = 0
        for l in range(engine.network.count):
            layer = &engine.layers[l]
            self.states[l].stride = self.spread(layer.outputs)
            self.states[l].sums = self.floats(most_rows * self.states[l].stride)
            self.states[l].outputs = self.floats(most_rows * self.states[l].stride)
            self.states[l].deltas = self.floats(most_rows * self.states[l].stride)
            self.states[l].weight_gradient = data(self.gradients) + (layer.weights - data(engine.parameters))
            self.states[l].bias_gradient = data(self.gradients) + (layer.biases - data(engine.parameters))
            self.states[l].input_stride = fann_padded(layer.inputs)
            if l > 0:
                self.states[l].weights_by_output = self.floats(layer.outputs * self.states[l].input_stride)
            for first in range(0, layer.inputs, self.block_rows(l)):
                rows = min(self.block_rows(l), layer.inputs - first)
                self.blocks[count] = fann_block(l, first, rows)
                count += 1
        self.step.network = &engine.network
        self.step.states = self.states
        self.step.blocks = self.blocks
        self.step.block_count = count
        self.step.x_stride = self.spread(engine.layers[0].inputs)
        self.step.x = self.floats(most_rows * self.step.x_stride)
        self.step.row_losses = self.floats(most_rows)
        self.step.loss = loss
        self.step.loss_parameter = loss_parameter
        self.step.hard_share = hard_share
        faults = np.zeros(most_rows + count, dtype=np.intc)
        squares = np.zeros(count, dtype=np.float64)
        self.memory += [faults, squares]
        self.step.row_faults = <int *>cnp.PyArray_DATA(<cnp.ndarray>faults)
        self.step.block_faults = self.step.row_faults + most_rows
        self.step.block_squares = <double *>cnp.PyArray_DATA(<cnp.ndarray>squares)
        self.step.parameters = data(engine.parameters)
        self.step.gradients = data(self.gradients)
        self.step.moment1 = data(self.moment1)
        self.step.moment2 = data(self.moment2)

    def __dealloc__(self):
        free(self.states)
        free(self.blocks)

    cdef float *floats(self, int64_t count) except NULL:
        memory = aligned_zeros(count + 16)
        self.memory.append(memory)
        return data(memory)

    cdef int64_t block_rows(self, int64_t l):
        """Inputs in a block: about BLOCK_FLOATS weights, a multiple of every tile's rows."""
        return max(48, BLOCK_FLOATS // self.engine.layers[l].stride // 12 * 12)

    cdef int64_t spread(self, int64_t n):
        """Return a row stride for ``n`` floats: an odd multiple of 16.

        Rows of a column then fall into different cache sets.
        """
        cdef int64_t panels = fann_divide_up(n, FANN_PANEL)
        return (panels + 1 - panels % 2) * FANN_PANEL

    def gradient(
        self, cnp.ndarray inputs not None, cnp.ndarray targets not None, cnp.ndarray order not None,
        cnp.ndarray row_weights not None, bint sanitize, *, float drop=0.0, uint32_t drop_seed=0,
    ):
        """Compute loss and gradient of the rows ``order`` of a data set.

        A share ``drop`` in [0, 1) of the inputs is set to zero. Returns (status, loss, squared gradient norm, fault).
        Status is 1 when all is finite, 2 when a gradient is not. It is 0 when a forward value is not; fault is then
        (layer or None, row of the batch, index).
        """
        cdef int status, threads
        cdef double loss = 0.0, squares = 0.0
        cdef fann_fault fault
        cdef int64_t rows = cnp.PyArray_SIZE(order), i, limit
        cdef const int64_t *which
        if not is_plain(inputs, 2) or not is_plain(targets, 2) or not is_plain(row_weights, 1):
            raise InvalidInputError("inputs, targets and weights must be C-contiguous float32 arrays")
        if cnp.PyArray_TYPE(order) != cnp.NPY_INT64 or not cnp.PyArray_IS_C_CONTIGUOUS(order):
            raise InvalidInputError("order must be a C-contiguous int64 array")
        limit = inputs.shape[0]
        if (
            inputs.shape[1] != self.engine.layers[0].inputs
            or targets.shape[1] != self.engine.layers[self.engine.network.count - 1].outputs
            or targets.shape[0] != limit
            or row_weights.shape[0] != rows
            or not 1 <= rows <= self.most_rows
        ):
            raise SizeMismatchError("the batch does not fit the network, its targets or the memory it was given")
        which = <const int64_t *>cnp.PyArray_DATA(order)
        for i in range(rows):
            if not 0 <= which[i] < limit:
                raise SizeMismatchError(f"row {which[i]} is not one of the {limit} rows of the data set")
        self.acquire()
        self.step.inputs = data(inputs)
        self.step.targets = data(targets)
        self.step.order = which
        self.step.row_weights = data(row_weights)
        self.step.rows = rows
        self.step.sanitize = sanitize
        self.step.drop_seed = drop_seed
        self.step.drop_below = <uint32_t>(<double>drop * 4294967296.0)
        self.step.keep_scale = 1.0 / (1.0 - drop)
        threads = self.threads(rows)
        self.step.row_tasks = max(min(threads, fann_divide_up(rows, FEWEST_ROWS)), fann_divide_up(rows, TASK_ROWS))
        with nogil:
            status = fann_gradient(&self.step, self.engine.table, pool, threads, &loss, &squares, &fault)
        self.busy = False
        where = None if status != 0 else (None if fault.layer < 0 else fault.layer, fault.row, fault.index)
        return status, loss, squares, where

    def update(
        self, int kind, double learning_rate, *, float momentum=0.0, double beta1=0.9, double beta2=0.999,
        float epsilon=1e-8, double weight_decay=0.0, double correction1=1.0, double correction2_root=1.0,
        float gradient_scale=1.0, float gradient_limit=float("inf"), float shrink=0.5, float grow=1.2,
        float smallest_step=1e-6, float largest_step=50.0, bint decay_biases=False,
    ):
        """Move the parameters along the gradient computed last."""
        cdef fann_optimizer *optimizer = &self.step.optimizer
        cdef int threads
        self.acquire()
        set_optimizer(optimizer, kind, learning_rate, momentum, beta1, beta2, epsilon, weight_decay, correction1,
                      correction2_root, gradient_scale, gradient_limit)
        optimizer.shrink = shrink
        optimizer.grow = grow
        optimizer.smallest_step = smallest_step
        optimizer.largest_step = largest_step
        optimizer.decay_biases = decay_biases
        threads = self.threads(8)
        with nogil:
            fann_update(&self.step, self.engine.table, pool, threads)
        self.busy = False

    cdef int acquire(self) except -1:
        if self.busy:
            raise RuntimeError("this training is running in another thread")
        self.busy = True
        return 0

    cdef int threads(self, int64_t rows):
        return pool.get_threads(pool) if rows * cnp.PyArray_SIZE(<cnp.ndarray>self.engine.parameters) >= LONG_CALL else 1


include "optimizer_step.pxi"


def row_losses(int loss, float parameter, z, y, targets, *, float hard_share=0.0, isa=None):
    """Return each row's loss from sums ``z``, outputs ``y`` and ``targets``.

    All are (rows, n) float32; the sums of a softmax are its logits.
    """
    cdef const fann_kernel_table *table = table_of(isa)
    cdef int64_t rows = z.shape[0], n = z.shape[1]
    padded_z = aligned_zeros(rows * fann_padded(n) + 16)
    padded_y = aligned_zeros(rows * fann_padded(n) + 16)
    padded_z[: rows * fann_padded(n)].reshape(rows, -1)[:, :n] = z
    padded_y[: rows * fann_padded(n)].reshape(rows, -1)[:, :n] = y
    target = as_float32(targets, 2, "targets")
    if target.shape[0] != rows or target.shape[1] != n or y.shape != z.shape:
        raise SizeMismatchError(f"z, y and targets have shapes {z.shape}, {y.shape} and {target.shape}")
    losses = np.empty(rows, dtype=np.float32)
    table.row_losses(loss, parameter, hard_share, data(padded_z), data(padded_y), data(target), n, rows, data(losses))
    return losses


def activate(int activation, float alpha, z, *, isa=None):
    """Return an activation of rows ``z``, (rows, n) float32.

    Values that are not finite are not checked for.
    """
    cdef const fann_kernel_table *table = table_of(isa)
    array = as_float32(z, 2, "z")
    cdef int64_t rows = array.shape[0], n = array.shape[1], stride = fann_padded(n)
    whole = aligned_zeros(rows * stride + 16)
    view = whole[: rows * stride].reshape(rows, stride)[:, :n]
    view[...] = array
    table.activation(activation, alpha, data(whole), data(whole), rows, n, stride)
    return view.copy()
