// LogFolder: what one shard keeps on its own disk: segments of its log and a local snapshot that
// they begin behind (docs/checkpoints.md). Brings a shard back to everything that was acknowledged
// and starts the log anew when it has grown. Owned by its shard's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ps/log/log.h"
#include "ps/log/snapshot.h"
#include "ps/shard/shard.h"
#include "transport/links/fd.h"

namespace gradring::ps {

class LogReader;

struct LogFolderOptions {
  std::string folder;  // Made if missing; each shard has a folder of its own in it.
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  FsyncPolicy fsync;
  // The log starts anew behind a snapshot when it is longer than this and than the last snapshot.
  std::uint64_t most_log_bytes = std::uint64_t{256} << 20;
};

class LogFolder final : public Journal {
 public:
  // Throws InvalidArgument if the folder belongs to another number of shards or is in use, and
  // DeviceError if the disk says no.
  explicit LogFolder(LogFolderOptions options);
  ~LogFolder() override;
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  // Brings a new shard to where the last one was, and begins a new segment. The shard must live as
  // long as this. Throws ProtocolError that names the damaged file; then the shard is of no use.
  void replay(Shard& shard);
  void append(const wire::PsHeader& header, std::span<const std::byte> payload,
              std::uint32_t client, std::uint64_t incarnation) override;
  // As Log::sync(). Also writes a piece of a snapshot, when the log is to start anew; after the
  // shard was loaded from a checkpoint, more than one, and until all are there the shard changes
  // nothing. Without memory for it, which it says, it tries again later.
  void sync(Time now);

  // What replay() found.
  struct Found {
    std::uint64_t records = 0;        // Replayed.
    std::uint64_t next_record = 0;    // Behind the last one, since the very beginning.
    std::uint64_t from_snapshot = 0;  // Of them, how many the snapshot had.
    std::string torn;                 // What was cut off, "" if nothing.
  };
  const Found& found() const { return found_; }
  std::uint64_t segment() const { return log_->segment(); }

 private:
  struct Writing;  // A snapshot under way.

  void lock();
  std::string snapshot_path(std::uint64_t number) const;
  void load_snapshot(std::uint64_t number);
  // Returns the number of the last segment.
  std::uint64_t replay_segments(std::uint64_t first);
  bool replay_segment(std::uint64_t number, bool is_last);
  void require_fits(const LogReader& reader, std::uint64_t number) const;
  bool take_snapshot();
  void put_off_snapshot(Time now);
  void begin_writing();
  void write_piece();
  void drop_writing();
  void finish_snapshot();
  void remove_before(std::uint64_t number);
  void cut_off(const std::string& path, std::uint64_t bytes);
  void make_durable(const std::string& path, std::uint64_t vouched, std::uint64_t bytes);
  void remove_after(std::uint64_t number);
  void write_blocks(std::span<const std::byte> bytes);

  LogFolderOptions options_;
  std::string folder_;  // This shard's.
  transport::Fd lock_;
  std::unique_ptr<Log> log_;
  Shard* shard_ = nullptr;
  Found found_;
  std::unique_ptr<Writing> writing_;
  std::uint64_t last_snapshot_bytes_ = 0;
  std::uint64_t old_bytes_ = 0;   // Of segments before this one that no snapshot covers.
  std::uint64_t put_off_to_ = 0;  // Bytes of log before the next try: there was no memory.
  Time put_off_until_{};          // The same after a load.
  bool was_loaded_ = false;       // And no snapshot has that yet.
  bool is_header_torn_ = false;   // Of the last segment, which the next one replaces.
};

}  // namespace gradring::ps
