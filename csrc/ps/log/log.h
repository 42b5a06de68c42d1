// Log: the changes of one shard as a file that only grows (docs/checkpoints.md). The shard appends,
// its owner calls sync() once a turn of its loop, before any answer of that turn is sent: so
// everything that was acknowledged is in the log (promise P6). Owned by its shard's thread; with
// an interval, a thread of its own calls fdatasync.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "ps/log/fsync_policy.h"
#include "ps/shard/shard.h"
#include "transport/links/fd.h"

namespace gradring::ps {

class LogSyncer;

struct LogOptions {
  std::string folder;  // Must be there.
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  FsyncPolicy fsync;
  bool replaces_first = false;  // A crash has torn the header of the segment that is begun.
};

// folder/segment-000000000007.log
std::string segment_path(const std::string& folder, std::uint64_t segment);
// Makes the names in a folder durable. Throws as Log.
void sync_folder(const std::string& folder);
// What a file is called until it is whole.
inline constexpr char kDraft[] = ".draft";

// Throws DeviceError that names the file when the disk is full or fails. After that
// it stays failed: what the shard did since the last sync() that returned may not be answered, and
// the only way on is a restart, which reads back what was acknowledged.
class Log final : public Journal {
 public:
  // Begins a new segment; one of that number must not be there, but for `replaces_first`.
  Log(LogOptions options, std::uint64_t segment, std::uint64_t first_record);
  ~Log() override;  // Writes what is left and vouches for it.
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void append(const wire::PsHeader& header, std::span<const std::byte> payload,
              std::uint32_t client, std::uint64_t incarnation) override;
  // Writes what was appended. When it returns, that is as durable as the policy says.
  void sync();
  // sync(), and what comes next goes to the next segment.
  // False where the machine has no descriptor for one: all goes on in this one.
  bool begin_segment();

  std::uint64_t segment() const { return segment_; }
  std::uint64_t next_record() const { return next_record_; }
  std::uint64_t segment_bytes() const { return written_; }

 private:
  transport::Fd make_segment(std::uint64_t number) const;  // A draft; none: a shortage.
  void open_segment(transport::Fd file);
  void close_segment();
  void write_batch(std::uint64_t vouched);
  void write_all(std::span<const std::byte> bytes);
  void require_usable();
  [[noreturn]] void fail(const std::string& what);

  LogOptions options_;
  std::uint64_t segment_;
  std::uint64_t next_record_;
  std::uint64_t nonce_ = 0;
  transport::Fd file_;
  std::uint64_t written_ = 0;  // Bytes of the segment.
  Bytes batch_;                // Header and records; the header is filled in when it is written.
  std::uint32_t records_ = 0;  // In it.
  std::string failure_;
  std::unique_ptr<LogSyncer> syncer_;  // kInterval.
};

}  // namespace gradring::ps
