// One result an invocation: KIND 0: y = x + a; 1: y = x * a; 2: y = silu(x) * a; 3: y = the activation ACTIVATION of x.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups) * 64u + lane;
    let row = index / r.n;
    let column = index % r.n;
    if row >= r.rows {
        return;
    }
    let x = arena[r.x + row * r.x_stride + column];
    var y: f32;
    if KIND == 3u {
        y = activated(ACTIVATION, x);
    } else {
        let a = arena[r.a + row * r.a_stride + column];
        if KIND == 0u {
            y = x + a;
        } else if KIND == 1u {
            y = x * a;
        } else {
            y = silu_of(x) * a;
        }
    }
    arena[r.y + row * r.y_stride + column] = y;
}
