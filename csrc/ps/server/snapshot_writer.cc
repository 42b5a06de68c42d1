#include "ps/server/snapshot_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "ps/server/save_pace.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kSliceBytes = std::size_t{508} << 10;  // A request waits for so much.
// Four slices and what is around them: one huge page. Out of small ones the kernel takes three
// times the processor time for a write, and more buffers would have to be cleared first.
constexpr std::size_t kWriteBytes = std::size_t{2} << 20;
// Where writes past the page cache must begin, in the file and in memory: a page is enough for all.
constexpr std::size_t kPage = 4096;

std::size_t bytes_to(std::size_t boundary, const std::byte* at) {
  return (boundary - reinterpret_cast<std::uintptr_t>(at) % boundary) % boundary;
}

// Whole blocks, behind what the last buffer left over. Begins where a huge page can.
class Buffer {
 public:
  Buffer() {
    memory_.all().reserve(kReserved);
    begin_ = bytes_to(kWriteBytes, memory_.data());
    ::madvise(memory_.data() + begin_, kWriteBytes, MADV_HUGEPAGE);  // Only advice.
  }

  void begin(std::size_t left_over) {
    memory_.cut_to(0);
    memory_.extend(begin_ + left_over);
    left_over_ = left_over;
  }
  // On the shard's thread, until read_slice() returns false.
  void put_header(const SnapshotHeader& header) { ps::put_header(memory_.all(), header); }
  bool read_slice(Shard& shard, std::uint64_t cut) {
    const std::size_t opened = open_block(memory_.all(), BlockKind::kPiece);
    has_more_ = shard.next_snapshot_piece(cut, kSliceBytes, memory_);
    if (has_more_)
      close_block(memory_.all(), opened);
    else
      memory_.cut_to(opened);
    last_ = opened;
    return has_more_ && all().size() + kSliceBytes + kAround <= kWriteBytes;
  }
  std::size_t last_slice() const { return last_; }  // Where it begins.

  bool has_more() const { return has_more_; }
  SnapshotBytes& memory() { return memory_; }
  std::span<std::byte> left_over() { return all().first(left_over_); }
  std::span<std::byte> blocks() { return all().subspan(left_over_); }
  std::span<std::byte> all() { return std::span(memory_.all()).subspan(begin_); }

  // A record that was longer than the room for it has moved all to another place.
  void align() {
    if (bytes_to(kPage, memory_.data() + begin_) == 0) return;
    const std::size_t bytes = memory_.size() - begin_;
    memory_.extend(kPage);
    const std::size_t begin = bytes_to(kPage, memory_.data());
    std::memmove(memory_.data() + begin, memory_.data() + begin_, bytes);
    begin_ = begin;
    memory_.cut_to(begin + bytes);
  }

 private:
  static constexpr std::size_t kAround = 256;  // A slice: its block's head and its records'.
  static_assert(kPage + 4 * (kSliceBytes + kAround) <= kWriteBytes);
  // So much is mapped anew and not taken from what lies in small pages already; what is not touched
  // costs nothing.
  static constexpr std::size_t kReserved = std::size_t{33} << 20;

  SnapshotBytes memory_{SnapshotBytes::Reader::kDisk};
  std::size_t begin_ = 0;
  std::size_t last_ = 0;
  std::size_t left_over_ = 0;
  bool has_more_ = true;
};

class PagedOutput {
 public:
  explicit PagedOutput(const SnapshotFile& file) : file_(file) { write_directly(true); }

  // Of what was taken so far: what is too little for a page waits for more.
  std::span<const std::byte> left_over() const { return {left_over_.data(), left_over_bytes_}; }
  void take(std::span<const std::byte> bytes) {
    const std::size_t whole = bytes.size() / kPage * kPage;
    write(bytes.first(whole));
    left_over_bytes_ = bytes.size() - whole;
    std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(whole), bytes.end(), left_over_.begin());
  }
  void finish() {
    write_directly(false);
    write(left_over());
  }

 private:
  bool write_directly(bool wanted) {
    const int flags = ::fcntl(file_.fd, F_GETFL);
    is_direct_ = flags >= 0 && wanted && ::fcntl(file_.fd, F_SETFL, flags | O_DIRECT) == 0;
    if (!wanted && flags >= 0) ::fcntl(file_.fd, F_SETFL, flags & ~O_DIRECT);
    return is_direct_;
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t wrote = ::write(file_.fd, bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && errno == EINVAL && is_direct_) {
        write_directly(false);  // It wants more than pages, or cannot after all.
        continue;
      }
      if (wrote <= 0)
        throw DeviceError(
            str(file_.path, " cannot be written: ", std::strerror(wrote < 0 ? errno : ENOSPC)));
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
      // The rest begins at no page any more.
      if (static_cast<std::size_t>(wrote) % kPage != 0) write_directly(false);
    }
  }

  const SnapshotFile& file_;
  bool is_direct_ = false;
  std::array<std::byte, kPage> left_over_{};
  std::size_t left_over_bytes_ = 0;
};

// Reads ahead: a buffer is being filled while the last one is written. The slices of a buffer are
// due together: waking up for each would take more time than it leaves to others.
class Slices {
 public:
  Slices(ShardLoop& loop, Sealer& sealer, std::uint64_t cut)
      : loop_(loop), sealer_(sealer), cut_(cut) {}
  ~Slices() {
    try {
      if (begun_) loop_.finish(*begun_);  // It reads what is not there any more in a moment.
    } catch (const std::exception&) {     // Whoever is here has an error to tell of already.
    }
  }

  void begin(std::shared_ptr<Buffer> buffer) {
    filling_ = std::move(buffer);
    begun_ = loop_.begin(
        [this, to = filling_](Shard& shard, Time last_training) -> std::optional<Time> {
          const bool wants_more = to->read_slice(shard, cut_);
          sealer_.seal(to->memory(), to->last_slice());
          if (wants_more) return due_;
          due_ = pace_.next(to->all().size(), Clock::now(), last_training);
          return std::nullopt;
        },
        due_);
  }
  std::shared_ptr<Buffer> take() {
    const auto begun = std::exchange(begun_, nullptr);
    loop_.finish(*begun);
    return std::exchange(filling_, nullptr);
  }

 private:
  ShardLoop& loop_;
  // The shard's thread's while it fills a buffer.
  Sealer& sealer_;
  const std::uint64_t cut_;
  SavePace pace_;
  Time due_{};
  std::shared_ptr<Buffer> filling_;
  std::shared_ptr<ShardLoop::Begun> begun_;
};

// The payload of the second block: the first is the header.
std::vector<std::byte> first_piece(std::span<const std::byte> blocks) {
  Block block;
  next_block(blocks, block);
  if (!next_block(blocks, block)) throw InternalError("a snapshot without its first piece");
  return {block.payload.begin(), block.payload.end()};
}

}  // namespace

SnapshotWritten write_snapshot(ShardLoop& loop, const SnapshotHeader& header,
                               const SnapshotFile& file) {
  PagedOutput out(file);
  Sealer sealer;
  SnapshotWritten written;
  auto spare = std::make_shared<Buffer>();
  auto first = std::make_shared<Buffer>();
  first->begin(0);
  first->put_header(header);
  sealer.seal(first->blocks());
  Slices slices(loop, sealer, header.cut);
  slices.begin(std::move(first));
  for (bool has_more = true; has_more;) {
    const std::shared_ptr<Buffer> full = slices.take();
    if (written.front.empty()) written.front = first_piece(full->blocks());
    has_more = full->has_more();
    if (has_more) {
      spare->begin(full->all().size() % kPage);
      slices.begin(std::move(spare));
    }
    if (!has_more) sealer.finish(full->memory().all());
    full->align();
    std::copy(out.left_over().begin(), out.left_over().end(), full->left_over().begin());
    out.take(full->all());
    spare = full;
  }
  out.finish();
  written.bytes = sealer.bytes();
  written.crc = sealer.crc();
  return written;
}

}  // namespace gradring::ps
