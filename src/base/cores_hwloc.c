/* cores_hwloc - what hwloc knows of the processors. */
#include "src/base/cores.h"

#include <hwloc.h>
#include <string.h>

/* The processors beside a device; NULL: not known. */
static hwloc_const_cpuset_t beside(hwloc_topology_t t, const char *device)
{
    hwloc_obj_t o = NULL;

    while ((o = hwloc_get_next_osdev(t, o)) != NULL) {
        if (o->name && strcmp(o->name, device) == 0) {
            o = hwloc_get_non_io_ancestor_obj(t, o);
            return o ? o->cpuset : NULL;
        }
    }
    return NULL;
}

static int place_in_core(hwloc_topology_t t, hwloc_obj_t pu)
{
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_CORE, pu);
    int place = 0;

    for (int i = hwloc_bitmap_first(core ? core->cpuset : pu->cpuset);
         i >= 0 && i != (int)pu->os_index; i = hwloc_bitmap_next(core->cpuset, i))
        place++;
    return place;
}

static int speed_of(hwloc_topology_t t, hwloc_obj_t pu)
{
    int kind = hwloc_cpukinds_get_by_cpuset(t, pu->cpuset, 0), speed = 0;

    if (kind < 0 || hwloc_cpukinds_get_info(t, (unsigned)kind, NULL, &speed, NULL, NULL, 0) < 0)
        return 0;
    return speed;
}

/* A NIC is found without the libraries of GPUs, displays and accelerators, which a plugin may
 * start, and which may change the environment that other threads read. */
static void leave_out(hwloc_topology_t t)
{
    static const char *const name[] = { "cuda", "nvml", "rsmi", "opencl", "levelzero", "gl" };

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, name[i]);
}

void cores_look(const char *device, struct core *c, int n)
{
    hwloc_topology_t t;
    hwloc_const_cpuset_t near;

    if (hwloc_topology_init(&t) < 0)
        return;
    leave_out(t);
    if (device[0])
        hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(t) == 0) {
        near = device[0] ? beside(t, device) : NULL;
        for (int i = 0; i < n; i++) {
            hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(t, (unsigned)c[i].number);

            if (!pu)
                continue;
            c[i].sibling = place_in_core(t, pu);
            c[i].speed = speed_of(t, pu);
            c[i].near = near && hwloc_bitmap_isset(near, pu->os_index);
        }
    }
    hwloc_topology_destroy(t);
}
