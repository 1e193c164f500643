// cooperative_groups - the blocks of a cluster, as kernels name them.
#ifndef TANDEM_TESTS_EMULATED_COOPERATIVE_GROUPS_H
#define TANDEM_TESTS_EMULATED_COOPERATIVE_GROUPS_H

#include "tests/emulated/device.h"

namespace cooperative_groups
{
struct cluster_group {
    struct arrival_token {
    };

    unsigned block_rank() const
    {
        return emulated::rank_of_block();
    }

    template <typename T> T *map_shared_rank(T *p, int rank) const
    {
        return (T *)emulated::peer_place(p, rank, true);
    }

    arrival_token barrier_arrive() const
    {
        emulated::gang_arrive();
        return {};
    }

    void barrier_wait(arrival_token &&) const
    {
        emulated::gang_wait();
    }

    void sync() const
    {
        emulated::gang_arrive();
        emulated::gang_wait();
    }
};

static inline cluster_group this_cluster()
{
    return {};
}
} // namespace cooperative_groups

#endif
