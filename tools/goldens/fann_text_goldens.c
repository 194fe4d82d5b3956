/* Makes the .net files in packages/lattice-fann/tests/data/fann with the C library FANN 2.2.0 (Debian libfann-dev), and
 * prints what the library computes from them.
 *
 *     gcc -O1 tools/goldens/fann_text_goldens.c -lfann -lm -o fann_text_goldens
 *     cd packages/lattice-fann/tests/data/fann && fann_text_goldens > outputs.json
 */
#include <fann.h>
#include <stdio.h>

static unsigned state = 12345;
static float draw(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static void randomize(struct fann *network)
{
    struct fann_connection connections[256];
    const unsigned count = fann_get_total_connections(network);
    fann_get_connection_array(network, connections);
    for (unsigned i = 0; i < count; i++)
        connections[i].weight = draw();
    fann_set_weight_array(network, connections, count);
}

static void finish(struct fann *network, const char *name, int last)
{
    const unsigned inputs = fann_get_num_input(network), outputs = fann_get_num_output(network);
    fann_save(network, name);
    printf(" \"%s\": [\n", name);
    for (int sample = 0; sample < 3; sample++) {
        fann_type x[16];
        printf("  {\"x\": [");
        for (unsigned i = 0; i < inputs; i++) {
            x[i] = draw();
            printf("%s%.9g", i ? ", " : "", x[i]);
        }
        const fann_type *y = fann_run(network, x);
        printf("], \"y\": [");
        for (unsigned i = 0; i < outputs; i++)
            printf("%s%.9g", i ? ", " : "", y[i]);
        printf("]}%s\n", sample < 2 ? "," : "");
    }
    printf(" ]%s\n", last ? "" : ",");
    fann_destroy(network);
}

int main(void)
{
    struct fann *network;
    printf("{\n");
    network = fann_create_standard(4, 3, 5, 4, 2);
    fann_set_activation_function_hidden(network, FANN_SIGMOID_SYMMETRIC);
    fann_set_activation_function_output(network, FANN_SIGMOID);
    randomize(network);
    finish(network, "tanh_sigmoid.net", 0);

    network = fann_create_standard(3, 4, 6, 1);
    fann_set_activation_function_hidden(network, FANN_SIGMOID);
    fann_set_activation_steepness_hidden(network, 0.8f);
    fann_set_activation_function_output(network, FANN_LINEAR);
    fann_set_activation_steepness_output(network, 1.5f);
    randomize(network);
    finish(network, "sigmoid_linear.net", 0);

    network = fann_create_sparse(0.5f, 3, 4, 6, 2);
    fann_set_activation_function_hidden(network, FANN_SIGMOID_SYMMETRIC);
    fann_set_activation_function_output(network, FANN_SIGMOID_SYMMETRIC);
    randomize(network);
    finish(network, "sparse.net", 0);

    network = fann_create_standard(3, 2, 3, 1);
    randomize(network);
    finish(network, "default.net", 1);
    printf("}\n");

    network = fann_create_shortcut(3, 2, 3, 1);
    fann_save(network, "shortcut.net");
    fann_destroy(network);
    network = fann_create_standard(3, 2, 3, 1);
    fann_set_activation_function_hidden(network, FANN_GAUSSIAN);
    fann_save(network, "gaussian.net");
    fann_save_to_fixed(network, "fixed.net");
    fann_destroy(network);
    return 0;
}
