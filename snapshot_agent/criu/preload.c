/* Two things that CRIU lacks on some machines; preloaded into CRIU alone, by its own loader, only where one is needed.
 *
 * 1. AMX.  A process must ask for the tile registers (arch_prctl ARCH_REQ_XCOMP_PERM), and CRIU does not carry the
 *    permission: a restored oneDNN or PyTorch worker dies of SIGILL at its first matrix product.  The permission is
 *    inherited by fork, so CRIU asks for it before it forks the tree (when HOTSTART_XCOMP_PERM is set).
 * 2. CAP_SYS_RESOURCE.  CRIU reads the limits of each task with prlimit64(pid, resource, NULL, &limit) through
 *    syscall(2); for a process of another uid the kernel wants that capability even for reading.  The same numbers stand
 *    in /proc/PID/limits, which CAP_SYS_PTRACE may read.
 *
 * Everything else passes through.  Build: cc -shared -fPIC -O2 -o hotstart-preload.so preload.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static const char *const titles[] = {
	[RLIMIT_CPU] = "Max cpu time",		 [RLIMIT_FSIZE] = "Max file size",
	[RLIMIT_DATA] = "Max data size",	 [RLIMIT_STACK] = "Max stack size",
	[RLIMIT_CORE] = "Max core file size",	 [RLIMIT_RSS] = "Max resident set",
	[RLIMIT_NPROC] = "Max processes",	 [RLIMIT_NOFILE] = "Max open files",
	[RLIMIT_MEMLOCK] = "Max locked memory",	 [RLIMIT_AS] = "Max address space",
	[RLIMIT_LOCKS] = "Max file locks",	 [RLIMIT_SIGPENDING] = "Max pending signals",
	[RLIMIT_MSGQUEUE] = "Max msgqueue size", [RLIMIT_NICE] = "Max nice priority",
	[RLIMIT_RTPRIO] = "Max realtime priority", [RLIMIT_RTTIME] = "Max realtime timeout",
};

#if defined(__x86_64__)
static long kernel(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
static long kernel(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#endif

__attribute__((constructor)) static void ask_for_tiles(void)
{
#if defined(__x86_64__)
	const long req_xcomp_perm = 0x1023, xtiledata = 18;

	if (getenv("HOTSTART_XCOMP_PERM"))
		kernel(SYS_arch_prctl, req_xcomp_perm, xtiledata, 0, 0, 0, 0); /* refused: no AMX here, none to restore */
#endif
}

static rlim_t number(const char *word)
{
	return strcmp(word, "unlimited") ? (rlim_t)strtoull(word, NULL, 10) : RLIM_INFINITY;
}

static int from_proc(int pid, unsigned resource, struct rlimit *limit)
{
	char path[64], line[256], soft[32], hard[32];
	int found = -1;
	FILE *file;

	if (resource >= sizeof(titles) / sizeof(*titles))
		return -1;
	snprintf(path, sizeof(path), "/proc/%d/limits", pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while (found && fgets(line, sizeof(line), file)) {
		size_t length = strlen(titles[resource]);
		if (!strncmp(line, titles[resource], length) && sscanf(line + 26, "%31s %31s", soft, hard) == 2) {
			limit->rlim_cur = number(soft);
			limit->rlim_max = number(hard);
			found = 0;
		}
	}
	fclose(file);
	return found;
}

long syscall(long n, ...)
{
	long a[6], result;
	va_list list;

	va_start(list, n);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	result = kernel(n, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (n == SYS_prlimit64 && result == -EPERM && !a[2] && a[3] &&
	    !from_proc((int)a[0], (unsigned)a[1], (struct rlimit *)a[3]))
		return 0;
	if (result < 0 && result > -4096) {
		errno = (int)-result;
		return -1;
	}
	return result;
}
