/* assert - the criteria that the laws and goldens use. */
#ifndef TANDEM_TESTS_DEVICE_CRITERION_NEW_ASSERT_H
#define TANDEM_TESTS_DEVICE_CRITERION_NEW_ASSERT_H

#define eq(type, a, b) shim_eq_##type(a, b)
#define ne(type, a, b) (!shim_eq_##type(a, b))
#define lt(type, a, b) ((a) < (b))
#define le(type, a, b) ((a) <= (b))
#define gt(type, a, b) ((a) > (b))
#define ge(type, a, b) ((a) >= (b))
#define not(c) (!(c))
#define epsilon_eq(type, a, b, e) (fabs((double)(a) - (double)(b)) <= (double)(e))

#define shim_eq_int(a, b) ((a) == (b))
#define shim_eq_i32(a, b) ((a) == (b))
#define shim_eq_u32(a, b) ((a) == (b))
#define shim_eq_u64(a, b) ((a) == (b))
#define shim_eq_sz(a, b) ((a) == (b))
#define shim_eq_flt(a, b) ((a) == (b))
#define shim_eq_dbl(a, b) ((a) == (b))
#define shim_eq_ptr(a, b) ((a) == (b))
#define shim_eq_str(a, b) (strcmp(a, b) == 0)

#endif
