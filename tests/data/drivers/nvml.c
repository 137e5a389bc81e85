/* Stands in for libnvidia-ml.so.1: names, numbers and layouts of nvml.h (12), two GPUs of which the second fell off the bus
   and comes without most functions' support before. The first one has MIG on, with one instance at index 1. */
#include <stdlib.h>
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LOST = 15 };
static char gpu0, gpu1, mig;
#define ONLY(of) if (device != &of) return device == &gpu1 && lost() ? LOST : NOT_SUPPORTED

static int lost(void) { return getenv("NVML_LOST") != NULL; }

int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *out, u32 length) { strncpy(out, "580.65.06", length); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13000; return OK; }
int nvmlDeviceGetCount_v2(u32 *out) { *out = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **out) {
  *out = index ? &gpu1 : &gpu0;
  return index && lost() ? LOST : OK;
}
int nvmlDeviceGetName(void *device, char *out, u32 length) {
  strncpy(out, device == &mig ? "NVIDIA A100-SXM4-40GB MIG 3g.20gb" : "NVIDIA A100-SXM4-40GB", length);
  return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 8; *minor = 0; return OK; }
struct memory { u32 version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *out) {
  if (device == &gpu1) return lost() ? LOST : NO_PERMISSION;
  out->total = device == &mig ? 20ULL << 30 : 40ULL << 30;
  out->reserved = 500ULL << 20;
  out->used = 10ULL << 30;
  out->free = out->total - out->reserved - out->used;
  return OK;
}
struct process { u32 pid; u64 used; u32 gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *count, struct process *out) {
  ONLY(gpu0);
  if (*count < 1 || !out) { *count = 1; return INSUFFICIENT_SIZE; }
  const char *pid = getenv("NVML_PID");
  *count = 1;
  out[0] = (struct process){pid ? (u32)atoi(pid) : 4242, 9ULL << 30, 1, 0};
  return OK;
}
struct busy { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct busy *out) { ONLY(gpu0); out->gpu = 93; out->memory = 41; return OK; }
int nvmlDeviceGetClockInfo(void *device, u32 domain, u32 *out) { ONLY(gpu0); *out = domain == 2 ? 1215 : 1410; return OK; }
int nvmlDeviceGetMaxClockInfo(void *device, u32 domain, u32 *out) { ONLY(gpu0); *out = domain == 2 ? 1215 : 1410; return OK; }
/* An idle GPU, the power cap, slow in hardware for heat. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *out) { ONLY(gpu0); *out = 1 | 4 | 0x40; return OK; }
int nvmlDeviceGetEccMode(void *device, u32 *current, u32 *pending) { ONLY(gpu0); *current = *pending = 1; return OK; }
int nvmlDeviceGetTotalEccErrors(void *device, u32 uncorrected, u32 aggregate, u64 *out) {
  ONLY(gpu0);
  *out = (uncorrected ? 1 : 3) + (aggregate ? 10 : 0);
  return OK;
}
int nvmlDeviceGetMigMode(void *device, u32 *current, u32 *pending) { ONLY(gpu0); *current = *pending = 1; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(void *device, u32 *out) { *out = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, u32 index, void **out) {
  *out = &mig;
  return index == 1 ? OK : NOT_FOUND;
}
struct attributes { u32 multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; u64 megabytes; };
int nvmlDeviceGetAttributes_v2(void *device, struct attributes *out) {
  *out = (struct attributes){.multiprocessors = 42, .gpu_slices = 3, .compute_slices = 3, .megabytes = 20096};
  return OK;
}
