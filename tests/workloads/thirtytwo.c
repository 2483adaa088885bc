/* A 32-bit program, without any library: 32-bit ones need not be installed.  See zoo.h for the protocol. */
enum { EXIT = 1, WRITE = 4, ACCESS = 33, NANOSLEEP = 162 };

static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

__attribute__((force_align_arg_pointer, noreturn)) void _start(void) {
    static const long nap[2] = {0, 20000000};
    call(WRITE, 1, (long)"ready\n", 6);
    while (call(ACCESS, (long)"go", 0, 0)) call(NANOSLEEP, (long)nap, 0, 0);
    call(WRITE, 1, (long)"OK\n", 3);
    call(EXIT, 0, 0, 0);
    __builtin_unreachable();
}
