// A libnccl.so.2 for tests: NCCL's functions on host memory, between processes of one machine. What
// goes wrong in it is told by the environment:
//   FAKE_NCCL_VERSION   the version it reports
//   FAKE_NCCL_FAULTS    "AllReduce:2:internal,CommAbort:1:block": what befalls the nth call of a
//                       function. A code ("cuda", "system", "internal") is returned; "remote" and
//                       "broken" are found out later; "hang": its kernel never ends; "stuck" and
//                       "slow": in progress for ever, or for a while; "block": does not return.
//   FAKE_NCCL_LOG       a file that gets a line for every call
//   FAKE_NCCL_FOLDER    where the ranks' common files are
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "fake_nccl/comm.h"
#include "kernels/half.h"

namespace fake {
namespace {

using gradring::gpu::nccl::Config;
using gradring::gpu::nccl::Residence;
using gradring::gpu::nccl::UniqueId;

constexpr int kFirstMultiplier = 5;  // As ncclNumOps: what is made comes after what is there.

std::mutex mutex;
std::set<Comm*> alive;
std::map<std::string, int> calls;
thread_local int group_depth = 0;
struct Grouped {
  Comm* comm;
  void* stream;
  Operation operation;
};
thread_local std::vector<Grouped> grouped;

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "fake NCCL: %s\n", why.c_str());
  std::abort();
}

void log(const std::string& line) {
  const std::string path = setting("FAKE_NCCL_LOG");
  if (path.empty()) return;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string text = line + "\n";
  if (fd < 0 || ::write(fd, text.data(), text.size()) < 0) std::abort();
  ::close(fd);
}

// What is to befall this call; "" mostly.
std::string fault_of(const std::string& name) {
  int nth = 0;
  {
    const std::lock_guard lock(mutex);
    nth = ++calls[name];
  }
  std::istringstream faults(setting("FAKE_NCCL_FAULTS"));
  const std::string wanted = name + ":" + std::to_string(nth) + ":";
  for (std::string fault; std::getline(faults, fault, ',');)
    if (fault.compare(0, wanted.size(), wanted) == 0) return fault.substr(wanted.size());
  return "";
}

Comm& use(Comm* comm, const char* name, bool may_be_busy = false) {
  {
    const std::lock_guard lock(mutex);
    if (alive.count(comm) == 0) die(std::string(name) + " on a communicator that is no more");
  }
  // What it then asks of the device would open device 0, which may be another rank's.
  if (device_in_use() != comm->device)
    die(std::string(name) + " on a thread that has not the communicator's device");
  if (!may_be_busy && comm->state.load() == Result::kInProgress)
    die(std::string(name) + " while another call is in progress");
  return *comm;
}

// Applies a fault; the result of the call so far.
Result suffer(const std::string& fault, Comm& comm) {
  if (fault == "cuda") return Result::kUnhandledCudaError;
  if (fault == "system") return Result::kSystemError;
  if (fault == "internal") return Result::kInternalError;
  if (fault == "remote") comm.state = Result::kRemoteError;
  if (fault == "broken") comm.state = Result::kSystemError;
  if (fault == "stuck" || fault == "slow") {
    comm.polls_to_go = fault == "slow" ? 20 : 1 << 30;
    comm.state = Result::kInProgress;
    return Result::kInProgress;
  }
  if (fault == "block") ::pause();
  return Result::kSuccess;
}

Result enqueue(Comm* comm, void* stream, Operation operation) {
  if (group_depth == 0) {
    push(comm->device, stream, [comm, operation] { run(*comm, {operation}); });
    return Result::kSuccess;
  }
  grouped.push_back({comm, stream, std::move(operation)});
  return Result::kSuccess;
}

Result call(Comm* named, void* stream, Operation operation) {
  Comm& comm = use(named, operation.name.c_str());
  log(operation.name + " " + std::to_string(operation.count));
  const int op = static_cast<int>(operation.op);
  if (op >= kFirstMultiplier) {
    operation.factor = comm.multipliers.at(static_cast<std::size_t>(op - kFirstMultiplier)).factor;
    operation.op = RedOp::kSum;
  }
  const std::string fault = fault_of(operation.name);
  operation.hangs = fault == "hang";
  const Result result = suffer(fault, comm);
  if (result != Result::kSuccess && result != Result::kInProgress) return result;
  enqueue(&comm, stream, std::move(operation));
  return result;
}

// Joins the others on a thread of its own; then nothing is in progress any more.
void be_born(Comm* comm, const std::string& fault) {
  std::thread([comm, fault] {
    try {
      if (fault == "stuck") comm->segment->wait_until([] { return false; });
      comm->segment->join();
      comm->state = Result::kSuccess;
      if (fault == "remote") comm->state = Result::kRemoteError;
    } catch (const Aborted&) {
    }
  }).detach();
}

Comm* make(const std::string& id, int rank, int size, int device) {
  auto* comm = new Comm(id, rank, size, device);  // Threads may hold it until the process ends.
  const std::lock_guard lock(mutex);
  alive.insert(comm);
  return comm;
}

void check_config(const Config* config) {
  if (config == nullptr || config->magic != 0xcafebeef || config->version != 21800 ||
      config->size != sizeof(Config) || config->blocking != 0)
    die("the configuration is not what 2.18 defines");
}

void split(Comm* parent, int color, int key, Comm** made) {
  const int nth = ++parent->splits;
  std::thread([=] {
    try {
      const int mine[2] = {color, key};
      const std::vector<std::size_t> bytes(static_cast<std::size_t>(parent->size), sizeof(mine));
      const auto all =
          parent->segment->exchange("split", reinterpret_cast<const char*>(mine), bytes);
      int rank = 0;
      int size = 0;
      for (int other = 0; other < parent->size; ++other) {
        int theirs[2];
        std::memcpy(theirs, all[static_cast<std::size_t>(other)].data(), sizeof(theirs));
        if (theirs[0] != color) continue;
        ++size;
        if (theirs[1] < key || (theirs[1] == key && other < parent->rank)) ++rank;
      }
      if (color >= 0) {
        *made = make(parent->id + "-" + std::to_string(nth) + "-" + std::to_string(color), rank,
                     size, parent->device);
        be_born(*made, "");
      }
      parent->state = Result::kSuccess;
    } catch (const Aborted&) {
    }
  }).detach();
}

}  // namespace
}  // namespace fake

using namespace fake;  // NOLINT: what follows is C.

#define FAKE_API extern "C" __attribute__((visibility("default")))

FAKE_API Result ncclGetVersion(int* version) {
  const std::string wanted = setting("FAKE_NCCL_VERSION");
  *version = wanted.empty() ? 22809 : std::stoi(wanted);
  return Result::kSuccess;
}

FAKE_API Result ncclGetUniqueId(UniqueId* id) {
  if (fault_of("GetUniqueId") == "system") return Result::kSystemError;
  std::random_device random;
  std::snprintf(id->bytes, sizeof(id->bytes), "fake-%08x%08x", random(), random());
  return Result::kSuccess;
}

FAKE_API Result ncclCommInitRankConfig(Comm** made, int size, UniqueId id, int rank,
                                       Config* config) {
  check_config(config);
  if (device_in_use() < 0) die("no device is in use where a communicator is made");
  if (size > kMostRanks) die("more ranks than the fake has room for");
  const std::string fault = fault_of("CommInitRankConfig");
  if (fault == "block") ::pause();
  if (fault == "cuda") return Result::kUnhandledCudaError;
  *made = make(id.bytes, rank, size, device_in_use());
  be_born(*made, fault);
  return Result::kInProgress;
}

FAKE_API Result ncclCommSplit(Comm* parent, int color, int key, Comm** made, Config* config) {
  check_config(config);
  Comm& comm = use(parent, "CommSplit");
  *made = nullptr;
  comm.state = Result::kInProgress;
  split(parent, color, key, made);
  return Result::kInProgress;
}

FAKE_API Result ncclCommFinalize(Comm* comm) {
  log("CommFinalize");
  return suffer(fault_of("CommFinalize"), use(comm, "CommFinalize"));
}

FAKE_API Result ncclCommDestroy(Comm* comm) {
  use(comm, "CommDestroy");
  log("CommDestroy");
  const std::lock_guard lock(mutex);
  alive.erase(comm);
  return Result::kSuccess;
}

FAKE_API Result ncclCommAbort(Comm* comm) {
  use(comm, "CommAbort", true);
  log("CommAbort");
  const std::string fault = fault_of("CommAbort");
  if (fault == "block") ::pause();
  comm->is_aborted = true;
  const std::lock_guard lock(mutex);
  alive.erase(comm);
  return Result::kSuccess;
}

FAKE_API Result ncclCommGetAsyncError(Comm* comm, Result* state) {
  use(comm, "CommGetAsyncError", true);
  if (comm->polls_to_go > 0 && --comm->polls_to_go == 0) comm->state = Result::kSuccess;
  *state = comm->state;
  return Result::kSuccess;
}

FAKE_API const char* ncclGetErrorString(Result result) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return texts[static_cast<int>(result)];
}

FAKE_API const char* ncclGetLastError(Comm*) {
  return "the fake was told to fail\n";
}

FAKE_API Result ncclRedOpCreatePreMulSum(RedOp* op, void* scalar, DataType type,
                                         Residence residence, Comm* comm) {
  use(comm, "RedOpCreatePreMulSum");
  if (residence != Residence::kHostImmediate) die("the factor is not on the host");
  double factor = 0;
  float single = 0;
  std::uint16_t half = 0;
  std::memcpy(&factor, scalar, sizeof(factor));
  std::memcpy(&single, scalar, sizeof(single));
  std::memcpy(&half, scalar, sizeof(half));
  if (type == DataType::kFloat32) factor = single;
  if (type == DataType::kFloat16) factor = gradring::kernels::Float16::widened(half);
  if (type == DataType::kBfloat16) factor = gradring::kernels::BFloat16::widened(half);
  *op = static_cast<RedOp>(kFirstMultiplier + static_cast<int>(comm->multipliers.size()));
  comm->multipliers.push_back({*op, factor});
  return Result::kSuccess;
}

FAKE_API Result ncclRedOpDestroy(RedOp op, Comm* comm) {
  use(comm, "RedOpDestroy", true);
  const auto index = static_cast<std::size_t>(static_cast<int>(op) - kFirstMultiplier);
  if (index >= comm->multipliers.size()) die("RedOpDestroy of what was not made");
  return Result::kSuccess;
}

FAKE_API Result ncclAllReduce(const void* in, void* out, std::size_t count, DataType type, RedOp op,
                              Comm* comm, void* stream) {
  return call(comm, stream, {"AllReduce", (const char*)in, (char*)out, count, type, op});
}

FAKE_API Result ncclReduceScatter(const void* in, void* out, std::size_t count, DataType type,
                                  RedOp op, Comm* comm, void* stream) {
  return call(comm, stream, {"ReduceScatter", (const char*)in, (char*)out, count, type, op});
}

FAKE_API Result ncclAllGather(const void* in, void* out, std::size_t count, DataType type,
                              Comm* comm, void* stream) {
  return call(comm, stream, {"AllGather", (const char*)in, (char*)out, count, type});
}

FAKE_API Result ncclBroadcast(const void* in, void* out, std::size_t count, DataType type, int root,
                              Comm* comm, void* stream) {
  return call(comm, stream,
              {"Broadcast", (const char*)in, (char*)out, count, type, RedOp::kSum, 1, root});
}

FAKE_API Result ncclReduce(const void* in, void* out, std::size_t count, DataType type, RedOp op,
                           int root, Comm* comm, void* stream) {
  return call(comm, stream, {"Reduce", (const char*)in, (char*)out, count, type, op, 1, root});
}

FAKE_API Result ncclSend(const void* in, std::size_t count, DataType type, int peer, Comm* comm,
                         void* stream) {
  return call(comm, stream, {"Send", (const char*)in, nullptr, count, type, RedOp::kSum, 1, peer});
}

FAKE_API Result ncclRecv(void* out, std::size_t count, DataType type, int peer, Comm* comm,
                         void* stream) {
  return call(comm, stream, {"Recv", nullptr, (char*)out, count, type, RedOp::kSum, 1, peer});
}

FAKE_API Result ncclGroupStart() {
  ++group_depth;
  log("GroupStart");
  return Result::kSuccess;
}

// One piece of work, so that messages of a group wait for nothing in between.
FAKE_API Result ncclGroupEnd() {
  if (group_depth == 0) die("GroupEnd without GroupStart");
  log("GroupEnd");
  if (--group_depth > 0 || grouped.empty()) return Result::kSuccess;
  const std::vector<Grouped> group = std::move(grouped);
  grouped.clear();
  std::vector<Operation> operations;
  for (const Grouped& one : group) {
    if (one.comm != group[0].comm || one.stream != group[0].stream)
      die("a group of several communicators or streams");
    operations.push_back(one.operation);
  }
  Comm* comm = group[0].comm;
  push(comm->device, group[0].stream, [comm, operations] { run(*comm, operations); });
  return suffer(fault_of("GroupEnd"), *comm);
}
