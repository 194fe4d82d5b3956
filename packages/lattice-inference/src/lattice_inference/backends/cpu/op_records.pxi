# Included by _cpu.pyx as text: the parameters of an op, as the records of kernels/step.h.


cdef lattice_view view_of(object operand) except *:
    """Return the view of an operand, (slot, stride, column), or None for no operand."""
    cdef lattice_view view
    memset(&view, 0, sizeof(view))
    view.slot = -1
    if operand is not None:
        view.slot, view.stride, view.column = operand
        if not 0 <= view.slot < LATTICE_MAX_SLOTS:
            raise ValueError(f"slot {view.slot} is not one of the {LATTICE_MAX_SLOTS} slots of a step")
    return view


cdef const void *weight_at(object weight, int weight_type) except NULL:
    """Return the data of an array, or of panels given as (Memory, byte offset)."""
    cdef Memory memory
    if isinstance(weight, tuple):
        memory, offset = weight
        return memory.data + <Py_ssize_t>offset
    return weight_data(weight, weight_type, weight.size, "weight")


cdef const float *floats_or_none(object array, Py_ssize_t size, str name) except? NULL:
    return NULL if array is None else float32_data(array, size, name)


cdef int fill_record(lattice_op *op, str record, dict given, list owners) except -1:
    """Fill the record of an op, and remove its fields from ``given``.

    ``owners`` keeps memory for the op.

    The fields are names, such as weight types and activations, and arrays. ``bounds`` are low and high of the range, in
    float32, within which rows are quantized.
    """
    if record == "linear":
        op.linear.weight_type = WEIGHT_TYPES[given.pop("weight_type")]
        op.linear.activation = ACTIVATIONS[given.pop("activation", "none")]
        residual = given.pop("residual", None)
        if op.linear.activation != LATTICE_ACTIVATION_NONE and residual is not None:
            raise ValueError("a linear takes an activation or a residual: which comes first is not said by an op with both")
        op.linear.residual = view_of(residual)
        op.linear.weight = weight_at(given.pop("weight"), op.linear.weight_type)
        op.linear.bias = floats_or_none(given.pop("bias", None), op.n, "bias")
    elif record == "embed":
        op.embed.ids = IDS[given.pop("ids")]
        op.embed.weight_type = WEIGHT_TYPES[given.pop("weight_type")]
        op.embed.packed = given.pop("packed", False)
        op.embed.table = weight_at(given.pop("table"), op.embed.weight_type)
        op.embed.residual = view_of(given.pop("residual", None))
    elif record == "norm":
        op.norm.epsilon, op.norm.heads = given.pop("epsilon"), given.pop("heads", 1)
        op.norm.weight = float32_data(given.pop("weight"), op.n // op.norm.heads, "weight")
        op.norm.bias = floats_or_none(given.pop("bias", None), op.n, "bias")
        op.norm.quantized = view_of(given.pop("quantized", None))
        op.norm.range = floats_or_none(given.pop("bounds", None), 2, "bounds")
    elif record == "quantize":
        op.quantize.range = floats_or_none(given.pop("bounds", None), 2, "bounds")
    elif record == "attention":
        op.attention.heads, op.attention.kv_heads = given.pop("heads"), given.pop("kv_heads")
        op.attention.head_dim, op.attention.scale = given.pop("head_dim"), given.pop("scale")
        op.attention.sums = view_of(given.pop("sums", None))
    elif record == "paged":
        op.paged.heads, op.paged.kv_heads = given.pop("heads"), given.pop("kv_heads")
        op.paged.head_dim, op.paged.scale = given.pop("head_dim"), given.pop("scale")
        op.paged.layer, op.paged.window = given.pop("layer", 0), given.pop("window")
        op.paged.sums = view_of(given.pop("sums", None))
    elif record == "kv_write":
        op.kv_write.layer, op.kv_write.kv_heads = given.pop("layer"), given.pop("kv_heads")
        op.kv_write.attention_heads = given.pop("attention_heads", 0)
    elif record == "angles":
        op.angles.frequencies = float32_data(given.pop("frequencies"), op.n // 2, "frequencies")
        op.angles.scale = given.pop("scale")
    elif record == "rope":
        op.rope.heads, op.rope.head_dim = given.pop("heads"), given.pop("head_dim")
        op.rope.width, op.rope.pairing = given.pop("width"), PAIRINGS[given.pop("pairing")]
    elif record == "low_rank":
        op.low_rank.group = given.pop("group")
    elif record == "factors":
        op.factors.site, op.factors.number = given.pop("site"), given.pop("number")
        op.factors.rank, op.factors.scale = given.pop("rank"), given.pop("scale", 1.0)
        op.factors.input = view_of(given.pop("further", None))
    elif record == "attention_grad":
        fill_attention_grad(op, given, owners)
    elif record == "loss":
        op.loss.weight_type, op.loss.outputs = WEIGHT_TYPES[given.pop("weight_type")], given.pop("outputs")
        op.loss.weight = weight_at(given.pop("weight"), op.loss.weight_type)
        op.loss.dx = view_of(given.pop("dx"))
    elif record == "input_rows":
        op.input_rows = given.pop("number")
    elif record == "activation":
        op.activation = ACTIVATIONS[given.pop("activation")]
    elif record == "pool":
        op.pool = POOLS[given.pop("pool")]
    return 0


cdef int fill_attention_grad(lattice_op *op, dict given, list owners) except -1:
    cdef lattice_attention_grad_record *record
    room = np.zeros(sizeof(lattice_attention_grad_record), np.uint8)
    owners.append(room)
    record = <lattice_attention_grad_record *>cnp.PyArray_DATA(<cnp.ndarray>room)
    record.heads, record.kv_heads, record.head_dim = given.pop("heads"), given.pop("kv_heads"), given.pop("head_dim")
    record.scale, record.window, record.is_causal = given.pop("scale"), given.pop("window"), given.pop("is_causal")
    record.y, record.sums, record.dy = view_of(given.pop("y")), view_of(given.pop("sums")), view_of(given.pop("dy"))
    record.dk, record.dv = view_of(given.pop("dk")), view_of(given.pop("dv"))
    op.attention_grad = record
    return 0
