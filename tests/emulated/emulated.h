/* emulated - how a test chooses the device that it gets. */
#ifndef TANDEM_TESTS_EMULATED_EMULATED_H
#define TANDEM_TESTS_EMULATED_EMULATED_H

#ifdef __cplusplus
extern "C" {
#endif

/* Before a device is opened. */
extern struct emulated_limits {
    int block_shared, sm_shared; /* bytes of shared memory */
    int cluster;                 /* blocks, where a kernel may have more than any device has */
} emulated_limits;

/* engine.h, `order` */
extern unsigned emulated_order;

#ifdef __cplusplus
}
#endif

#endif
