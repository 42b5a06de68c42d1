#include "ps/tables/snapshot_bytes.h"

#include <algorithm>

#include "base/crc32c.h"

namespace gradring::ps {
void SnapshotBytes::append_run(std::span<const std::byte> bytes) {
  // Of less, lines that are only half written would cost more than the cache does.
  constexpr std::size_t kLeastBytes = 4096;
  if (reader_ == Reader::kProcessor || bytes.size() < kLeastBytes) return append(bytes);
  const std::size_t begin = size();
  const std::uint32_t crc = crc32c_copy(extend(bytes.size()), bytes);
  if (!runs_.empty() && runs_.back().end == begin) {
    runs_.back().crc = crc32c_joined(runs_.back().crc, crc, bytes.size());
    runs_.back().end = size();
  } else {
    runs_.push_back({begin, size(), crc});
  }
}

void SnapshotBytes::cut_to(std::size_t size) {
  while (!runs_.empty() && runs_.back().end > size) runs_.pop_back();
  bytes_.resize(size);
}

std::uint32_t SnapshotBytes::checksum(std::size_t begin, std::size_t end) const {
  std::uint32_t crc = 0;
  const auto first =
      std::lower_bound(runs_.begin(), runs_.end(), begin,
                       [](const Run& run, std::size_t at) { return run.begin < at; });
  for (auto run = first; run != runs_.end() && run->end <= end; ++run) {
    crc = crc32c(view().subspan(begin, run->begin - begin), crc);
    crc = crc32c_joined(crc, run->crc, run->end - run->begin);
    begin = run->end;
  }
  return crc32c(view().subspan(begin, end - begin), crc);
}

}  // namespace gradring::ps
