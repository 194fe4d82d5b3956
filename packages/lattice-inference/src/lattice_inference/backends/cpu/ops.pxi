# Included by _cpu.pyx: the record of an op, from what the lowering gives by name.


cdef lattice_view view_of(object operand) except *:
    """(slot, stride, column), or None for no operand."""
    cdef lattice_view view
    memset(&view, 0, sizeof(view))
    view.slot = -1
    if operand is not None:
        view.slot, view.stride, view.column = operand
        if not 0 <= view.slot < LATTICE_MAX_SLOTS:
            raise ValueError(f"slot {view.slot} is not one of the {LATTICE_MAX_SLOTS} slots of a step")
    return view


cdef const void *weight_at(object weight, int weight_type) except NULL:
    """The data of an array, or of panels given as (Memory, byte offset)."""
    cdef Memory memory
    if isinstance(weight, tuple):
        memory, offset = weight
        return memory.data + <Py_ssize_t>offset
    return weight_data(weight, weight_type, weight.size, "weight")


cdef const float *floats_or_none(object array, Py_ssize_t size, str name) except? NULL:
    return NULL if array is None else float32_data(array, size, name)


cdef int fill_record(lattice_op *op, str record, dict given) except -1:
    """Fill the record of an op, and take what it consists of out of ``given``: names of weight types, activations and the
    like, arrays, and ``bounds``, low and high in float32 that rows are quantized within.
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
        op.norm.epsilon = given.pop("epsilon")
        op.norm.weight = float32_data(given.pop("weight"), op.n, "weight")
        op.norm.bias = floats_or_none(given.pop("bias", None), op.n, "bias")
        op.norm.quantized = view_of(given.pop("quantized", None))
        op.norm.range = floats_or_none(given.pop("bounds", None), 2, "bounds")
    elif record == "quantize":
        op.quantize.range = floats_or_none(given.pop("bounds", None), 2, "bounds")
    elif record == "attention":
        op.attention.heads, op.attention.kv_heads = given.pop("heads"), given.pop("kv_heads")
        op.attention.head_dim, op.attention.scale = given.pop("head_dim"), given.pop("scale")
    elif record == "paged":
        op.paged.heads, op.paged.kv_heads = given.pop("heads"), given.pop("kv_heads")
        op.paged.head_dim, op.paged.scale = given.pop("head_dim"), given.pop("scale")
        op.paged.layer, op.paged.window = given.pop("layer"), given.pop("window")
    elif record == "kv_write":
        op.kv_write.layer, op.kv_write.kv_heads = given.pop("layer"), given.pop("kv_heads")
        op.kv_write.attention_heads = given.pop("attention_heads", 0)
    elif record == "angles":
        op.angles.frequencies = float32_data(given.pop("frequencies"), op.n // 2, "frequencies")
        op.angles.scale = given.pop("scale")
    elif record == "rope":
        op.rope.heads, op.rope.head_dim = given.pop("heads"), given.pop("head_dim")
        op.rope.width, op.rope.pairing = given.pop("width"), PAIRINGS[given.pop("pairing")]
    elif record == "activation":
        op.activation = ACTIVATIONS[given.pop("activation")]
    elif record == "pool":
        op.pool = POOLS[given.pop("pool")]
    return 0
