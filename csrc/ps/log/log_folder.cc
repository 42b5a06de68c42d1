#include "ps/log/log_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <utility>

#include "base/log.h"
#include "ps/log/log_files.h"
#include "ps/log/log_reader.h"
#include "transport/links/socket.h"

namespace gradring::ps {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{512} << 10;  // Of a snapshot, a turn of the loop.
constexpr int kPiecesAfterLoad = 16;                         // A turn: somebody waits.
constexpr Millis kNextTry{1000};                             // For memory, after a load.
constexpr std::size_t kReadBytes = std::size_t{4} << 20;

std::string shard_folder(const LogFolderOptions& options) {
  char name[40];
  std::snprintf(name, sizeof name, "/shard-%05u-of-%05u", options.shard, options.shards);
  return options.folder + name;
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw DeviceError(str("log: ", path, " ", what, ": ", std::strerror(errno)));
}

// Shards of another layout in the folder hold other rows than ours would.
void require_same_layout(const LogFolderOptions& options) {
  char ours[16];
  std::snprintf(ours, sizeof ours, "-of-%05u", options.shards);
  for (const std::string& name : names_in(options.folder)) {
    if (name.starts_with("shard-") && name.find("-of-") != std::string::npos &&
        !name.ends_with(ours))
      throw InvalidArgument(
          str("log: ", options.folder, " has the log of ", name, "; this server is one of ",
              options.shards,
              " shards. Start as many as then, or take an empty folder and load a checkpoint"));
  }
}

}  // namespace

struct LogFolder::Writing {
  std::uint64_t number = 0;
  std::string path;
  transport::Fd file;
  Sealer sealer;
  std::uint64_t bytes = 0;
  SnapshotBytes piece;
};

LogFolder::LogFolder(LogFolderOptions options)
    : options_(std::move(options)), folder_(shard_folder(options_)) {
  const bool syncs = options_.fsync.kind != FsyncKind::kNone;
  std::error_code error;
  make_folders(options_.folder, syncs, error);
  if (!error) require_same_layout(options_);
  if (!error) fs::create_directory(folder_, error);
  if (error) throw DeviceError(str("log: ", folder_, " cannot be made: ", error.message()));
  if (syncs) sync_folder(options_.folder);
  lock();
}

LogFolder::~LogFolder() = default;

void LogFolder::lock() {
  const std::string path = folder_ + "/lock";
  lock_ = transport::Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock_) fail(path, "cannot be made");
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) fail(path, "cannot be locked");
  throw InvalidArgument(
      str("log: ", folder_, " is in use by another server; each has a folder of its own"));
}

std::string LogFolder::snapshot_path(std::uint64_t number) const {
  return numbered(folder_ + "/snapshot-", number, ".grps");
}

void LogFolder::replay(Shard& shard) {
  shard_ = &shard;
  // A crash came while they were written.
  for (const std::uint64_t draft : numbers_in(folder_, "snapshot-", str(".grps", kDraft)))
    remove_file(snapshot_path(draft) + kDraft);
  for (const std::uint64_t draft : numbers_in(folder_, "segment-", str(".log", kDraft)))
    remove_file(segment_path(folder_, draft) + kDraft);
  const std::vector<std::uint64_t> snapshots = numbers_in(folder_, "snapshot-", ".grps");
  const std::uint64_t first = snapshots.empty() ? 1 : snapshots.back();
  require_newest_segment(folder_, first, snapshots.empty() ? "" : snapshot_path(first));
  if (!snapshots.empty()) load_snapshot(first);
  const std::uint64_t last = replay_segments(first);
  if (options_.fsync.kind != FsyncKind::kNone) sync_folder(folder_);
  remove_before(first);
  if (!found_.torn.empty())
    log_warning(
        -1, str("shard ", options_.shard, ": ", found_.torn, ": nothing of it had been promised"));
  const LogOptions log{folder_, options_.shard, options_.shards, options_.fsync, is_header_torn_};
  log_ = std::make_unique<Log>(log, last + 1, found_.next_record);
}

void LogFolder::load_snapshot(std::uint64_t number) {
  const std::string path = snapshot_path(number);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be opened");
  Checker checker;
  std::vector<std::byte> bytes;
  std::size_t needed = kReadBytes;
  shard_->begin_load();
  try {
    while (true) {
      const std::size_t had = bytes.size();
      bytes.resize(std::max(needed, had + kReadBytes));
      file.read(reinterpret_cast<char*>(bytes.data() + had),
                static_cast<std::streamsize>(bytes.size() - had));
      bytes.resize(had + static_cast<std::size_t>(file.gcount()));
      if (file.bad()) fail(path, "cannot be read");
      const bool is_end = bytes.size() == had;
      const std::size_t whole = whole_blocks(bytes, needed);
      std::span<const std::byte> blocks = std::span(bytes).first(whole);
      checker.check(blocks);
      Block block;
      while (next_block(blocks, block))
        if (block.kind == BlockKind::kPiece) shard_->load_piece(block.payload);
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(whole));
      if (is_end) break;
    }
    checker.finish();
    if (checker.header().shard != options_.shard || checker.header().shards != options_.shards)
      throw ProtocolError(
          str("it is of shard ", checker.header().shard, " of ", checker.header().shards));
  } catch (const ProtocolError& error) {
    shard_->abandon_load();
    throw ProtocolError(str("log: ", path, " is damaged: ", error.what(),
                            "; nothing was loaded. Bring the file back, or load a checkpoint into "
                            "a server with an empty log folder"));
  }
  make_durable(path, checker.bytes(), checker.bytes());
  shard_->commit_load(true);
  found_.next_record = found_.from_snapshot = checker.header().cut;
  last_snapshot_bytes_ = checker.bytes();
}

std::uint64_t LogFolder::replay_segments(std::uint64_t first) {
  std::vector<std::uint64_t> segments = numbers_in(folder_, "segment-", ".log");
  std::erase_if(segments, [first](std::uint64_t number) { return number < first; });
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i] != first + i)
      throw ProtocolError(str("log: ", segment_path(folder_, first + i),
                              first + i == 1 ? str(" or ", snapshot_path(segments[i])) : "",
                              " is missing, but ", segment_path(folder_, segments[i]),
                              " is there; not loaded"));
    if (!replay_segment(segments[i], i + 1 == segments.size())) break;
  }
  const std::vector<std::uint64_t> left = numbers_in(folder_, "segment-", ".log");
  const std::uint64_t last = left.empty() || left.back() < first ? first - 1 : left.back();
  return is_header_torn_ ? last - 1 : last;
}

// False: a checkpoint was loaded here, but the crash came before its snapshot was whole, so nobody
// was told of it. It and what comes after it is taken back.
bool LogFolder::replay_segment(std::uint64_t number, bool is_last) {
  const std::string path = segment_path(folder_, number);
  LogReader reader(path, is_last);
  const bool has_header = reader.good_bytes() > 0;
  if (has_header) require_fits(reader, number);
  LogRecord record;
  bool goes_on = true;
  while (reader.next(record)) {
    goes_on = record.header.type != wire::PsType::kLoad;
    if (!goes_on) break;
    shard_->replay(record.header, record.payload, record.client, record.incarnation);
    ++found_.records;
    ++found_.next_record;
  }
  const std::uint64_t good_bytes = goes_on ? reader.good_bytes() : reader.batch_begin();
  old_bytes_ += good_bytes;
  if (!reader.torn().empty()) found_.torn = str(path, ": ", reader.torn(), "; cut off");
  // Before the mark is cut off: should this end halfway, only the mark tells the next start that
  // they do not count.
  if (!goes_on) remove_after(number);
  if (!has_header) {
    // Replaced, not removed: at no moment is it missing behind its snapshot.
    is_header_torn_ = true;
    return true;
  }
  if (!reader.torn().empty() || !goes_on) cut_off(path, good_bytes);
  make_durable(path, reader.vouched(), good_bytes);
  return goes_on;
}

void LogFolder::require_fits(const LogReader& reader, std::uint64_t number) const {
  const std::string path = segment_path(folder_, number);
  if (reader.shard() != options_.shard || reader.shards() != options_.shards ||
      reader.segment() != number)
    throw ProtocolError(str("log: ", path, " is segment ", reader.segment(), " of shard ",
                            reader.shard(), " of ", reader.shards(), "; it was not loaded"));
  if (reader.first_record() != found_.next_record)
    throw ProtocolError(str("log: ", path, " begins at record ", reader.first_record(),
                            ", but the one before it ends at ", found_.next_record,
                            "; it was not loaded"));
}

void LogFolder::append(const wire::PsHeader& header, std::span<const std::byte> payload,
                       std::uint32_t client, std::uint64_t incarnation) {
  if (!log_) return;  // replay() gives the shard what is in the log already.
  if (header.type == wire::PsType::kLoad) {
    log_->sync();  // The mark begins a batch, so that it can be taken back alone.
    drop_writing();
    was_loaded_ = true;
    shard_->hold_changes();
  }
  log_->append(header, payload, client, incarnation);
}

void LogFolder::sync(Time now) {
  log_->sync();
  const std::uint64_t least =
      std::max({options_.most_log_bytes, last_snapshot_bytes_, put_off_to_});
  const bool is_due =
      was_loaded_ ? now >= put_off_until_ : old_bytes_ + log_->segment_bytes() > least;
  if (!writing_ && !is_due) return;
  const bool begins = !writing_;
  try {
    if (begins && !take_snapshot()) return;
  } catch (const std::bad_alloc&) {
    return put_off_snapshot(now);
  }
  if (begins) begin_writing();
  if (begins && !was_loaded_) return;
  try {
    for (int left = was_loaded_ ? kPiecesAfterLoad : 1; writing_ && left > 0; --left) write_piece();
  } catch (const std::bad_alloc&) {
    put_off_snapshot(now);
  }
}

// The log has all that the snapshot would: without memory for one it grows, and nobody is told no.
// But its records lead to another state after a load: only a snapshot holds this one, and changes
// wait for it.
void LogFolder::put_off_snapshot(Time now) {
  shard_->end_snapshot(Shard::kOwnSnapshot);
  drop_writing();
  const std::uint64_t bytes = old_bytes_ + log_->segment_bytes();
  put_off_to_ = bytes + options_.most_log_bytes;
  put_off_until_ = now + kNextTry;
  const std::string who = str("shard ", options_.shard, ": there is no memory for a snapshot");
  const char* const advice = "Give this server more memory, or spread its tables over more";
  if (was_loaded_)
    return log_warning_once(-1, str("ps loaded ", folder_),
                            str(who, " of what was loaded, without which ", folder_,
                                " cannot bring it back; until there is, which is tried again ",
                                "every second, nothing is changed. ", advice));
  log_warning(-1, str(who, ", behind which the log of ", bytes, " bytes in ", folder_,
                      " would start anew; it grows, and this is tried again at ", put_off_to_,
                      " bytes. ", advice));
}

// What takes memory. False: a checkpoint is being read; later.
bool LogFolder::take_snapshot() {
  if (!shard_->begin_snapshot()) return false;
  writing_ = std::make_unique<Writing>();
  writing_->number = log_->segment() + 1;
  writing_->path = snapshot_path(writing_->number) + kDraft;
  writing_->piece.all().reserve(kPieceBytes);
  return true;
}

void LogFolder::begin_writing() {
  writing_->file =
      transport::Fd(::open(writing_->path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!writing_->file && !transport::is_shortage(errno)) fail(writing_->path, "cannot be made");
  const std::uint64_t bytes = log_->segment_bytes();
  // Without descriptors for both the log goes on as it is, and this is tried again.
  if (!writing_->file || !log_->begin_segment()) {
    shard_->end_snapshot(Shard::kOwnSnapshot);
    drop_writing();
    return;
  }
  old_bytes_ += bytes;
  put_header(writing_->piece.all(), {options_.shard, options_.shards, log_->next_record(), 0});
}

void LogFolder::write_piece() {
  if (!shard_->has_own_snapshot()) {  // It has given way to a checkpoint.
    drop_writing();
    return;
  }
  SnapshotBytes& piece = writing_->piece;
  const std::size_t opened = open_block(piece.all(), BlockKind::kPiece);
  const bool has_more = shard_->next_snapshot_piece(Shard::kOwnSnapshot, kPieceBytes, piece);
  close_block(piece.all(), opened);
  writing_->sealer.seal(piece, 0);
  if (!has_more) writing_->sealer.finish(piece.all());
  write_blocks(piece.view());
  piece.cut_to(0);
  if (!has_more) finish_snapshot();
}

void LogFolder::drop_writing() {
  if (!writing_) return;
  std::error_code is_left;  // Then the next start removes it.
  fs::remove(writing_->path, is_left);
  writing_.reset();
}

void LogFolder::write_blocks(std::span<const std::byte> bytes) {
  const auto begin = static_cast<off_t>(writing_->bytes);
  writing_->bytes += bytes.size();
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(writing_->file.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail(writing_->path, "cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  // Lets the disk begin, so that the last fdatasync is short.
  if (options_.fsync.kind != FsyncKind::kNone)
    ::sync_file_range(writing_->file.get(), begin, 0, SYNC_FILE_RANGE_WRITE);
}

void LogFolder::finish_snapshot() {
  shard_->end_snapshot(Shard::kOwnSnapshot);
  const bool syncs = options_.fsync.kind != FsyncKind::kNone;
  if (syncs && ::fdatasync(writing_->file.get()) != 0) fail(writing_->path, "cannot be synced");
  const std::string path = snapshot_path(writing_->number);
  if (::rename(writing_->path.c_str(), path.c_str()) != 0) fail(path, "cannot be named");
  if (syncs) sync_folder(folder_);
  last_snapshot_bytes_ = writing_->bytes;
  remove_before(writing_->number);
  old_bytes_ = put_off_to_ = 0;
  writing_.reset();
  if (std::exchange(was_loaded_, false)) shard_->let_changes_go_on();
}

// What the snapshot of this number covers.
void LogFolder::remove_before(std::uint64_t number) {
  for (const std::uint64_t segment : numbers_in(folder_, "segment-", ".log"))
    if (segment < number) remove_file(segment_path(folder_, segment));
  for (const std::uint64_t snapshot : numbers_in(folder_, "snapshot-", ".grps"))
    if (snapshot < number) remove_file(snapshot_path(snapshot));
}

void LogFolder::cut_off(const std::string& path, std::uint64_t bytes) {
  const transport::Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) fail(path, "cannot be cut");
}

// Before anything is answered by it: a kill may have left it in the page cache only, or a server
// without syncs has written it. What was not vouched for is written once more, as after a sync that
// failed the kernel takes what it has for what is on the disk. Of what was cut off, that it is
// gone: a torn tail that came back before a later segment would stop the next start.
void LogFolder::make_durable(const std::string& path, std::uint64_t vouched, std::uint64_t bytes) {
  if (options_.fsync.kind == FsyncKind::kNone) return;
  const transport::Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) fail(path, "cannot be opened");
  std::vector<std::byte> piece(kPieceBytes);
  for (std::uint64_t at = vouched; at < bytes;) {
    const std::size_t most = std::min<std::uint64_t>(piece.size(), bytes - at);
    const ssize_t got = ::pread(file.get(), piece.data(), most, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(path, "cannot be read");
    const auto count = static_cast<std::size_t>(got);
    const ssize_t wrote = ::pwrite(file.get(), piece.data(), count, static_cast<off_t>(at));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail(path, "cannot be written");
    at += static_cast<std::uint64_t>(wrote);
  }
  if (::fdatasync(file.get()) != 0) fail(path, "cannot be synced");
}

// Segments of a load that is taken back.
void LogFolder::remove_after(std::uint64_t number) {
  // First: should this end halfway, nobody misses them.
  tell_newest_segment(folder_, number, options_.fsync.kind != FsyncKind::kNone);
  for (const std::uint64_t segment : numbers_in(folder_, "segment-", ".log"))
    if (segment > number) remove_file(segment_path(folder_, segment));
  if (options_.fsync.kind != FsyncKind::kNone) sync_folder(folder_);
}

}  // namespace gradring::ps
