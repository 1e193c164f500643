/* cuda_none - in the place of cuda/ where the build has no CUDA: the name is known and says what is
 * missing. */
#include <errno.h>
#include <stdio.h>

#include "kernels/backend_table.h"
#include "kernels/exchange.h"
#include "kernels/plain.h"
#include "kernels/ref/ref.h"
#include "src/base/log.h"

static int none_probe(int ordinal, char *why, size_t cap)
{
    snprintf(why, cap, "this build has no CUDA");
    return -ENODEV;
}

static int none_open(int ordinal, int threads, struct device **out)
{
    return fail(-ENODEV, "cuda: this build has no CUDA");
}

/* There is no device, so nothing below is ever reached with one. */
static size_t none_room(struct device *d)
{
    return 0;
}

static int none_alloc(struct device *d, size_t bytes, void **out)
{
    return -ENOTSUP;
}

static void none_free(struct device *d, void *p)
{
}

static int none_host_alloc(struct device *d, size_t bytes, void **out)
{
    return -ENOTSUP;
}

static void none_host_free(struct device *d, void *p)
{
}

static int none_weights(struct device *d, const void *p, size_t bytes, const void **out)
{
    return -ENOTSUP;
}

static void none_unweights(struct device *d, const void *p)
{
}

static int none_queue_open(struct device *d, struct queue **out)
{
    return -ENOTSUP;
}

static void none_queue_close(struct queue *q)
{
}

static void none_copy(struct queue *q, void *dst, const void *src, size_t bytes)
{
}

static int none_queue(struct queue *q)
{
    return -ENOTSUP;
}

static int none_graph_end(struct queue *q, struct graph **out)
{
    return -ENOTSUP;
}

static void none_graph_launch(struct queue *q, struct graph *g)
{
}

static void none_graph_close(struct graph *g)
{
}

static void none_close(struct device *d)
{
}

void backend_settle(bool shared)
{
}

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .op = &ref_ops,
    .probe = none_probe,
    .open = none_open,
    .room = none_room,
    .alloc = none_alloc,
    .free = none_free,
    .host_alloc = none_host_alloc,
    .host_free = none_host_free,
    .weights = none_weights,
    .unweights = none_unweights,
    .queue_open = none_queue_open,
    .queue_close = none_queue_close,
    .put = none_copy,
    .get = none_copy,
    .wait = none_queue,
    .graph_begin = none_queue,
    .graph_end = none_graph_end,
    .graph_launch = none_graph_launch,
    .graph_close = none_graph_close,
    .close = none_close,
};

void exchange_round(struct queue *q, enum exchange_wire w, float *x, size_t n)
{
    queue_fail(q, -ENOTSUP, "exchange: this build has no CUDA");
}

void exchange_copy(struct queue *q, void *dst, const void *src, size_t bytes)
{
    queue_fail(q, -ENOTSUP, "exchange: this build has no CUDA");
}

void exchange_put(struct queue *q, enum exchange_wire w, void *slot, const float *x, size_t n)
{
}

void exchange_sum(struct queue *q, enum exchange_wire w, const void *parts, size_t stride,
                  int world, float *y, size_t n)
{
}

void *exchange_stream(struct queue *q)
{
    return NULL;
}

int peer_open(struct device *d, const struct peer_spec *s, struct peer **out)
{
    return fail(-ENOTSUP, "comm peer: this build has no CUDA");
}

int peer_join(struct peer *p, struct peer *const *all)
{
    return -ENOTSUP;
}

int peer_show(struct peer *p, uint8_t card[PEER_CARD_BYTES])
{
    return -ENOTSUP;
}

int peer_meet(struct peer *p, const uint8_t (*card)[PEER_CARD_BYTES])
{
    return -ENOTSUP;
}

void peer_note(struct peer *p, struct queue *q)
{
}

void peer_sum(struct peer *p, struct queue *q, int site, enum exchange_wire w, float *x, size_t n)
{
}

void peer_gather(struct peer *p, struct queue *q, int site, const void *in, void *out, size_t bytes)
{
}

int peer_check(const struct peer *p, struct peer_record *out)
{
    return -ENOTSUP;
}

void peer_abort(struct peer *p, int code)
{
}

int peer_count_to(struct peer *p, uint32_t seq)
{
    return -ENOTSUP;
}

void peer_relay(const struct peer *p, struct peer_relay *out)
{
}

int peer_device(const struct peer *p, uint8_t out[PEER_DEVICE_BYTES])
{
    return -ENOTSUP;
}

void peer_apart(struct peer *p, bool apart)
{
}

int peer_attach(struct peer *p, int rank, uint8_t *area, uint8_t *inbox, size_t flag_stride,
                bool raised_by_proxy, uint64_t **raised)
{
    return -ENOTSUP;
}

void peer_close(struct peer *p, bool parted)
{
}

bool plain_can(const struct queue *q, const struct matmul_args *a)
{
    return false;
}

void plain_product(struct queue *q, const struct matmul_args *a)
{
    queue_fail(q, -ENOTSUP, "plain: this build has no CUDA");
}

int blas_open(struct queue *q, char *why, size_t cap, struct blas **out)
{
    snprintf(why, cap, "this build has no CUDA");
    return 1;
}

void blas_close(struct blas *b)
{
}

void blas_product(struct blas *b, const void *w, const void *x, float *y, int rows, int outputs,
                  int inputs)
{
}
