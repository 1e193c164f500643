/* gate_stale.c - tandem with a fault that gate G6 is there to catch: what a graph copies to the
 * device stays what it was when the graph was made. Not a test itself.
 *
 *   tandem_gate_stale gate ...
 */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

void __real_cuda_graph_put(struct cuda_queue *q, void *dst, const void *src, size_t bytes);
void __wrap_cuda_graph_put(struct cuda_queue *q, void *dst, const void *src, size_t bytes);

/* The copy lives as long as the graph may: as long as the process. */
void __wrap_cuda_graph_put(struct cuda_queue *q, void *dst, const void *src, size_t bytes)
{
    void *was = malloc(bytes);

    if (!was)
        abort();
    memcpy(was, src, bytes);
    __real_cuda_graph_put(q, dst, was, bytes);
}
