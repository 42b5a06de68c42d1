#include "ps/log/log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>
#include <utility>

#include "base/guarded.h"
#include "base/log.h"
#include "base/threads.h"
#include "ps/log/log_files.h"
#include "ps/log/log_format.h"
#include "transport/links/socket.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kKeptBytes = std::size_t{16} << 20;  // Of a buffer that once was larger.

std::uint64_t random_nonce() {
  std::uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
    throw InternalError("getrandom gave no bytes");
  return nonce;
}

void poll_for(int fd, int timeout_ms) {
  pollfd wanted{fd, POLLIN, 0};
  ::poll(&wanted, 1, timeout_ms);
}

}  // namespace

// Calls fdatasync on its own thread, at most an interval after something was written.
class LogSyncer {
 public:
  LogSyncer(int file, Millis interval)
      : interval_(interval), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_)
      throw DeviceError(str("the log needs a descriptor to be synced by: ", std::strerror(errno)));
    state_.with([file](State& state) { state.file = file; });
    thread_ = start_thread("log", [this] { run(); });
  }
  ~LogSyncer() { stop(); }

  // The error that it ended with: the kernel tells of a failed sync only once.
  int stop() {
    state_.with([](State& state) { state.is_stopping = true; });
    wake();
    if (thread_.joinable()) thread_.join();
    return error();
  }

  // So many bytes are written now. Returns how many are on the disk; throws nothing.
  std::uint64_t wrote(std::uint64_t bytes) {
    bool was_clean = false;
    const std::uint64_t durable = state_.with([&](State& state) {
      was_clean = state.written == state.durable;
      state.written = bytes;
      return state.durable;
    });
    if (was_clean) wake();
    return durable;
  }
  std::uint64_t durable() const {
    return state_.with([](const State& state) { return state.durable; });
  }
  int error() const {
    return state_.with([](const State& state) { return state.error; });
  }

 private:
  struct State {
    int file = -1;
    std::uint64_t written = 0;
    std::uint64_t durable = 0;
    int error = 0;
    bool is_stopping = false;
  };

  void wake() {
    const std::uint64_t one = 1;
    // A full counter wakes as well.
    if (::write(wake_.get(), &one, sizeof one) < 0 && errno != EAGAIN) std::terminate();
  }

  void run() {
    while (true) {
      State state = state_.with([](const State& now) { return now; });
      if (state.is_stopping || state.error != 0) return;
      if (state.written == state.durable) {
        poll_for(wake_.get(), -1);
        std::uint64_t count = 0;
        while (::read(wake_.get(), &count, sizeof count) > 0) continue;
        continue;
      }
      poll_for(wake_.get(), static_cast<int>(interval_.count()));
      state = state_.with([](const State& now) { return now; });
      if (state.is_stopping) return;
      const int error = ::fdatasync(state.file) == 0 ? 0 : errno;
      state_.with([&](State& now) {
        now.error = error;
        if (error == 0) now.durable = state.written;
      });
    }
  }

  Millis interval_;
  transport::Fd wake_;
  Guarded<State> state_;
  std::thread thread_;
};

FsyncPolicy parse_fsync_policy(std::string_view text) {
  if (text == "none") return {FsyncKind::kNone, Millis{0}};
  if (text == "always") return {FsyncKind::kAlways, Millis{0}};
  std::string_view digits = text;
  if (digits.ends_with("ms")) digits.remove_suffix(2);
  while (digits.ends_with(' ')) digits.remove_suffix(1);
  int millis = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), millis);
  if (error != std::errc() || end != digits.data() + digits.size() || millis < 1 ||
      millis > 3'600'000)
    throw InvalidArgument(
        str("fsync must be \"none\", \"always\" or milliseconds from 1 to "
            "3600000 such as \"50 ms\", not \"",
            text, "\""));
  return {FsyncKind::kInterval, Millis{millis}};
}

std::string segment_path(const std::string& folder, std::uint64_t segment) {
  return numbered(folder + "/segment-", segment, ".log");
}

void sync_folder(const std::string& folder) {
  const transport::Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0)
    throw DeviceError(str("log: the folder ", folder, " cannot be synced: ", std::strerror(errno)));
}

Log::Log(LogOptions options, std::uint64_t segment, std::uint64_t first_record)
    : options_(std::move(options)), segment_(segment), next_record_(first_record) {
  transport::Fd first = make_segment(segment_);
  if (!first) fail(str("cannot be made: ", std::strerror(errno)));
  open_segment(std::move(first));
}

Log::~Log() {
  try {
    if (failure_.empty()) close_segment();
  } catch (const std::exception& error) {
    log_warning(-1, error.what());
  }
}

// It has its name once it has its header, and the segment before it its end.
transport::Fd Log::make_segment(std::uint64_t number) const {
  const std::string path = segment_path(options_.folder, number);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  return transport::Fd(::open((path + kDraft).c_str(), flags, 0600));
}

void Log::open_segment(transport::Fd file) {
  const std::string path = segment_path(options_.folder, segment_);
  file_ = std::move(file);
  nonce_ = random_nonce();
  RawSegment raw{};
  raw.magic = kSegmentMagic;
  raw.version = kLogVersion;
  raw.shard = options_.shard;
  raw.shards = options_.shards;
  raw.segment = segment_;
  raw.first_record = next_record_;
  raw.nonce = nonce_;
  raw.crc = own_crc(raw);
  written_ = 0;
  write_all(raw_bytes(raw));
  const bool syncs = options_.fsync.kind != FsyncKind::kNone;
  if (syncs && ::fdatasync(file_.get()) != 0) fail(str("cannot be synced: ", std::strerror(errno)));
  if (!std::exchange(options_.replaces_first, false) && ::access(path.c_str(), F_OK) == 0)
    fail("cannot be made: it is there already");
  if (::rename((path + kDraft).c_str(), path.c_str()) != 0)
    fail(str("cannot be named: ", std::strerror(errno)));
  if (syncs) sync_folder(options_.folder);
  // Before anything in it is acknowledged, and never before the segment itself.
  tell_newest_segment(options_.folder, segment_, syncs);
  if (options_.fsync.kind == FsyncKind::kInterval)
    syncer_ = std::make_unique<LogSyncer>(file_.get(), options_.fsync.interval);
}

void Log::append(const wire::PsHeader& header, std::span<const std::byte> payload,
                 std::uint32_t client, std::uint64_t incarnation) {
  if (!failure_.empty()) return;  // The next sync() says so.
  wire::PsHeader whole = header;
  whole.payload_bytes = payload.size();
  const RawRecord raw{wire::encode(whole), incarnation, client, 0};
  const std::size_t at = batch_.empty() ? sizeof(RawBatch) : batch_.size();
  const std::size_t padding = (8 - payload.size() % 8) % 8;
  batch_.resize(at + sizeof raw + payload.size() + padding);
  std::byte* const to = batch_.data() + at;
  std::memcpy(to, &raw, sizeof raw);
  if (!payload.empty()) std::memcpy(to + sizeof raw, payload.data(), payload.size());
  std::memset(to + sizeof raw + payload.size(), 0, padding);
  ++records_;
}

void Log::sync() {
  require_usable();
  if (records_ == 0) return;
  write_batch(syncer_ ? syncer_->durable() : written_);
  if (options_.fsync.kind == FsyncKind::kAlways && ::fdatasync(file_.get()) != 0)
    fail(str("cannot be synced: ", std::strerror(errno)));
  if (syncer_) syncer_->wrote(written_);
}

bool Log::begin_segment() {
  sync();
  transport::Fd next = make_segment(segment_ + 1);
  if (!next && transport::is_shortage(errno)) return false;
  if (!next) fail(str("its next segment cannot be made: ", std::strerror(errno)));
  close_segment();
  ++segment_;
  open_segment(std::move(next));
  return true;
}

// An empty batch at the end vouches for all before it.
void Log::close_segment() {
  sync();
  if (syncer_) {
    const int error = syncer_->stop();
    syncer_.reset();
    if (error != 0) fail(str("cannot be synced: ", std::strerror(error)));
  }
  if (options_.fsync.kind != FsyncKind::kNone && ::fdatasync(file_.get()) != 0)
    fail(str("cannot be synced: ", std::strerror(errno)));
  batch_.resize(sizeof(RawBatch));
  write_batch(written_);
  if (options_.fsync.kind != FsyncKind::kNone && ::fdatasync(file_.get()) != 0)
    fail(str("cannot be synced: ", std::strerror(errno)));
}

void Log::write_batch(std::uint64_t vouched) {
  RawBatch raw{};
  raw.magic = kBatchMagic;
  raw.records = records_;
  raw.nonce = nonce_;
  raw.first_record = next_record_;
  raw.vouched = vouched;
  raw.body_bytes = batch_.size() - sizeof raw;
  raw.body_crc = crc32c(std::span<const std::byte>(batch_).subspan(sizeof raw));
  raw.crc = own_crc(raw);
  std::memcpy(batch_.data(), &raw, sizeof raw);
  write_all(batch_);
  next_record_ += records_;
  records_ = 0;
  batch_.clear();
  if (batch_.capacity() > kKeptBytes) batch_.shrink_to_fit();
}

void Log::write_all(std::span<const std::byte> bytes) {
  const std::uint64_t begin = written_;
  std::span<const std::byte> rest = bytes;
  while (!rest.empty()) {
    const ssize_t wrote = ::write(file_.get(), rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = wrote < 0 ? errno : ENOSPC;
      // Nothing of a batch that nobody was told of. If that fails too, reading finds a torn tail.
      const bool is_whole = ::ftruncate(file_.get(), static_cast<off_t>(begin)) == 0;
      fail(str("cannot be written: ", std::strerror(error), is_whole ? "" : " (its tail is torn)"));
    }
    rest = rest.subspan(static_cast<std::size_t>(wrote));
  }
  written_ += bytes.size();
}

void Log::require_usable() {
  if (!failure_.empty()) throw DeviceError(failure_);
  if (syncer_ && syncer_->error() != 0)
    fail(str("cannot be synced: ", std::strerror(syncer_->error())));
}

void Log::fail(const std::string& what) {
  failure_ = str("log: ", segment_path(options_.folder, segment_), " ", what,
                 "; this shard takes no more changes. Everything that was acknowledged is in the "
                 "log: make room, and start the server again");
  throw DeviceError(failure_);
}

}  // namespace gradring::ps
