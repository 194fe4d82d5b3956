/* y[m][n] = sum over k of x[m][k] w[n][k] as one would write it down: three loops, one thread, no library.
 *
 * A server for kernels.py. Reads lines "M K N" and answers each with the seconds that one such product takes.
 */
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"

static float *drawn(size_t count)
{
    float *values = malloc(count * sizeof(float));
    if (values == NULL) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(i * 2654435761u % 1000) / 1000.0f - 0.5f;
    return values;
}

static volatile float sink;

int main(void)
{
    long m, k, n;
    while (scanf("%ld %ld %ld", &m, &k, &n) == 3) {
        if (m < 1 || k < 1 || n < 1)
            return 2;
        float *x = drawn((size_t)(m * k)), *w = drawn((size_t)(k * n)), *y = malloc((size_t)(m * n) * sizeof(float));
        if (y == NULL)
            return 1;
        const double start = now();
        for (long row = 0; row < m; row++)
            for (long column = 0; column < n; column++) {
                float sum = 0.0f;
                for (long i = 0; i < k; i++)
                    sum += x[row * k + i] * w[column * k + i];
                y[row * n + column] = sum;
            }
        printf("%.6e\n", now() - start);
        fflush(stdout);
        sink = y[m * n - 1];
        free(x);
        free(w);
        free(y);
    }
    return 0;
}
