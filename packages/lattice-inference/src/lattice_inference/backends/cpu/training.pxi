# Included by _cpu.pyx as text: the factors that a program for training reads and whose gradients it adds to, and what its steps
# have besides.


cdef class TrainedFactors:
    """The factors of each site, and the sums of their gradients, all zeros at first.

    A is [rank][inputs] and B [outputs][rank].
    ``shapes`` gives (rank, inputs, outputs) of each site.
    """

    cdef lattice_site *sites
    cdef Memory memory
    cdef readonly tuple shapes
    cdef readonly list arrays
    cdef Py_ssize_t gradients

    def __cinit__(self, shapes):
        cdef Py_ssize_t i, part, total = 0
        cdef int64_t rank, inputs, outputs
        self.sites = NULL
        self.shapes = tuple(shapes)
        self.sites = <lattice_site *>calloc(max(1, len(self.shapes)), sizeof(lattice_site))
        if self.sites == NULL:
            raise MemoryError
        offsets = []
        for part in range(2):  # the gradients lie together, after all factors
            self.gradients = total
            for rank, inputs, outputs in self.shapes:
                if min(rank, inputs, outputs) < 1 or max(rank, inputs, outputs) > 1 << 30:
                    raise ValueError(f"there are no factors of {rank}, {inputs} and {outputs} rows and columns")
                offsets.append((total, total + round_up(4 * rank * inputs)))
                total += round_up(4 * rank * inputs) + round_up(4 * rank * outputs)
        self.memory = Memory(total, huge_pages=total >= 4 << 20)
        self.arrays = []
        for i, (rank, inputs, outputs) in enumerate(self.shapes):
            arrays = []
            for a, b in (offsets[i], offsets[len(self.shapes) + i]):
                arrays.append(np.frombuffer(self.memory, np.float32, rank * inputs, a).reshape(rank, inputs))
                arrays.append(np.frombuffer(self.memory, np.float32, outputs * rank, b).reshape(outputs, rank))
            self.sites[i].a = <const float *>cnp.PyArray_DATA(<cnp.ndarray>arrays[0])
            self.sites[i].b = <const float *>cnp.PyArray_DATA(<cnp.ndarray>arrays[1])
            self.sites[i].da = <float *>cnp.PyArray_DATA(<cnp.ndarray>arrays[2])
            self.sites[i].db = <float *>cnp.PyArray_DATA(<cnp.ndarray>arrays[3])
            self.arrays.append(tuple(arrays))

    def __dealloc__(self):
        free(self.sites)

    def zero_gradients(self):
        """Set all gradients to 0."""
        memset(self.memory.data + self.gradients, 0, self.memory.nbytes - self.gradients)

    @property
    def nbytes(self):
        """The bytes of factors and gradients."""
        return self.memory.nbytes


cdef int fill_draws(lattice_draws *draws, object given) except -1:
    """Fill draws from (seed, step, threshold, factor, alpha), or from None for none."""
    draws.is_on = given is not None
    if given is not None:
        draws.seed, draws.step, draws.threshold, draws.factor, draws.alpha = given
    return 0


cdef class StepTraining:
    """What a step of a program for training has besides its batch.

    ``dropout`` and ``noise`` are (seed, step, threshold, factor, alpha); dropout has no alpha, and noise has no threshold
    and factor.
    """

    cdef lattice_training training
    cdef TrainedFactors factors
    cdef tuple owners

    def __cinit__(
        self, TrainedFactors factors not None, *, cnp.ndarray targets=None, cnp.ndarray target_weights=None,
        dropout=None, noise=None,
    ):
        self.factors = factors
        self.owners = (targets, target_weights)
        self.training.sites = factors.sites
        if targets is not None:
            self.training.targets = int32_data(targets, targets.size, "targets")
        if target_weights is not None:
            self.training.target_weights = float32_data(target_weights, target_weights.size, "target_weights")
        fill_draws(&self.training.dropout, dropout)
        fill_draws(&self.training.noise, noise)


cdef int check_training(Plan plan, Step step) except -1:
    """Raise ValueError unless a step has what the ops of a program for training read."""
    cdef StepTraining given = step.training
    cdef Py_ssize_t i, rows
    cdef int64_t outputs
    if given is None:
        raise TypeError("this program is for training: pass factors")
    if given.factors.shapes != plan.shapes:
        raise ValueError("factors of other sizes than those of the plan")
    rows = step.step.logit_count
    for outputs, has_gradient in plan.losses:
        targets, weights = given.owners
        if targets is None or targets.size != rows or (has_gradient and (weights is None or weights.size != rows)):
            raise ValueError(f"a loss of {rows} rows needs a target and a weight for each")
        for i in range(rows):
            if not 0 <= given.training.targets[i] < outputs:
                raise ValueError(f"the target {given.training.targets[i]} of row {i} is not one of {outputs} outputs")
    return 0
