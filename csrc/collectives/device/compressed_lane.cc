#include "collectives/device/compressed_lane.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "gpu/chunks.h"

namespace gradring::collectives {
namespace {

constexpr std::size_t kScratchAlignBytes = 256;
// Memory of nearly one size serves jobs of nearly one size.
constexpr std::size_t kGrain = std::size_t{64} << 10;

std::size_t rounded(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

std::size_t piece_bytes(std::uint64_t count) {
  return (count + GRADRING_CHUNK_ITEMS - 1) / GRADRING_CHUNK_ITEMS * sizeof(gradring_chunk);
}

}  // namespace

CompressedPlaces::CompressedPlaces(const CompressedLayout& layout, const GpuCodec& codec,
                                   bool has_residual) {
  const auto ranks = static_cast<std::size_t>(layout.ranks());
  const auto take = [](std::size_t& used, std::size_t bytes) {
    return std::exchange(used, used + rounded(bytes, kScratchAlignBytes));
  };
  const auto encoded = [&](Rank part) {
    return layout.bytes(part) - CompressedLayout::kHeaderBytes;
  };
  const std::size_t own_count = layout.count(layout.rank());
  std::size_t longest = 0;
  std::size_t all_pieces = piece_bytes(own_count);
  residual = take(device_bytes, has_residual ? layout.count() * sizeof(float) : 0);
  sum = take(device_bytes, codec.needs_sum(ranks) ? own_count * sizeof(float) : 0);
  own = take(device_bytes, encoded(layout.rank()));
  for (Rank part = 0; part < layout.ranks(); ++part) {
    const bool is_own = part == layout.rank();
    parts.push_back(is_own ? own : take(device_bytes, encoded(part)));
    received.push_back(is_own ? 0 : take(device_bytes, encoded(layout.rank())));
    longest = std::max(longest, layout.count(part));
    all_pieces += piece_bytes(layout.count(part));
  }
  scratch = take(device_bytes, codec.scratch_bytes(longest));
  out = take(pinned_bytes, std::max(layout.bytes_of_others(), layout.bytes(layout.rank())));
  in = take(pinned_bytes, std::max(layout.bytes_received(), layout.bytes_of_all()));
  pieces = take(pinned_bytes, codec.needs_pieces() ? all_pieces : 0);
}

CompressedJob::CompressedJob(CompressedLane& lane, const Compressed& what,
                             const CompressedLayout& layout)
    : lane_(lane),
      what_(what),
      layout_(layout),
      codec_(lane.device(), what.codec),
      places_(layout, codec_, what.residual != nullptr),
      encoded_(lane.device()),
      added_(lane.device()),
      end_(lane.device()),
      quiet_(lane.device()) {}

bool CompressedJob::is_over() const {
  try {
    return has_left_.load(std::memory_order_acquire) && encoded_.is_passed() && quiet_.is_passed();
  } catch (const DeviceError&) {
    return true;  // A device at fault does nothing any more.
  }
}

float* CompressedJob::residual(Rank part) const {
  if (what_.residual == nullptr) return nullptr;
  return reinterpret_cast<float*>(device(places_.residual)) + layout_.begin(part);
}

GpuCodec::Vector CompressedJob::vector_of(float* at, std::uint64_t count) {
  Vector vector{at, count, {}};
  if (!codec_.needs_pieces() || count == 0) return vector;
  const gpu::Placed whole{at, 0, count};
  const auto pieces = gpu::cut_pieces(std::span(&whole, 1), sizeof(float));
  std::byte* const table = pinned(places_.pieces + pieces_used_);
  std::memcpy(table, pieces.data(), pieces.size() * sizeof(gradring_chunk));
  pieces_used_ += pieces.size() * sizeof(gradring_chunk);
  vector.pieces = {reinterpret_cast<const gradring_chunk*>(table),
                   static_cast<std::uint32_t>(pieces.size())};
  return vector;
}

void CompressedJob::begin(const std::vector<gradring_stream>& streams) noexcept {
  const gpu::StreamView down = lane_.down();
  try {
    for (const gradring_stream stream : streams) {
      gpu::Event ready(lane_.device());
      ready.record({lane_.device(), stream});
      down.wait(ready);
    }
    if (layout_.ranks() > 1) prepare();
  } catch (const std::exception& error) {
    failure_ = Failure::from(error);
  }
  try {
    encoded_.record(down);
  } catch (const std::exception& error) {
    if (!failure_) failure_ = Failure::from(error);
  }
}

void CompressedJob::prepare() {
  memory_ = lane_.take(places_.device_bytes, places_.pinned_bytes);
  codec_.use_scratch(device(places_.scratch));
  for (Rank part = 0; part < layout_.ranks(); ++part)
    parts_.push_back(vector_of(what_.values + layout_.begin(part), layout_.count(part)));
  const Rank own = layout_.rank();
  sum_ = vector_of(reinterpret_cast<float*>(device(places_.sum)), layout_.count(own));
  encode_for_others();
}

// Into a copy of the residual, which takes its place when all is well.
void CompressedJob::encode_for_others() {
  const gpu::StreamView down = lane_.down();
  if (what_.residual != nullptr && what_.count > 0)
    down.copy(device(places_.residual), what_.residual, what_.count * sizeof(float));
  std::byte* out = pinned(places_.out);
  for (Rank part = 0; part < layout_.ranks(); ++part) {
    if (part == layout_.rank()) continue;
    const auto at = static_cast<std::size_t>(part);
    std::byte* const encoded = device(places_.parts[at]);
    codec_.encode(parts_[at], residual(part), encoded, down);
    layout_.write_header(out);
    if (encoded_bytes(part) > 0)
      down.copy(out + CompressedLayout::kHeaderBytes, encoded, encoded_bytes(part));
    out += layout_.bytes(part);
  }
}

// What has come of this rank's part, in rank order, with its own values where they belong.
void CompressedJob::add_up() {
  const gpu::StreamView up = lane_.up();
  const Rank own = layout_.rank();
  const std::size_t bytes = encoded_bytes(own);
  GpuCodec::Sum sum;
  const std::byte* in = pinned(places_.in);
  for (Rank from = 0; from < layout_.ranks(); ++from) {
    if (from == own) {
      sum.sources.push_back(nullptr);
      continue;
    }
    layout_.check_header(in, from);
    std::byte* const encoded = device(places_.received[static_cast<std::size_t>(from)]);
    if (bytes > 0) up.copy(encoded, in + CompressedLayout::kHeaderBytes, bytes);
    sum.sources.push_back(encoded);
    in += layout_.bytes(own);
  }
  sum.own = what_.values + layout_.begin(own);
  sum.sum = sum_;
  sum.residual = residual(own);
  sum.out = device(places_.own);
  codec_.encode_sum(sum, up);
  std::byte* const out = pinned(places_.out);
  layout_.write_header(out);
  if (bytes > 0) up.copy(out + CompressedLayout::kHeaderBytes, sum.out, bytes);
  added_.record(up);
}

void CompressedJob::put_together() {
  const gpu::StreamView up = lane_.up();
  const double total = what_.divisor_at == nullptr ? 0 : *what_.divisor_at;
  const std::byte* in = pinned(places_.in);
  for (Rank part = 0; part < layout_.ranks(); ++part) {
    layout_.check_header(in, part);
    in += layout_.bytes(part);
  }
  in = pinned(places_.in);
  for (Rank part = 0; part < layout_.ranks(); ++part) {
    const auto at = static_cast<std::size_t>(part);
    std::byte* const encoded = device(places_.parts[at]);
    if (part != layout_.rank() && encoded_bytes(part) > 0)
      up.copy(encoded, in + CompressedLayout::kHeaderBytes, encoded_bytes(part));
    codec_.decode(encoded, parts_[at], static_cast<float>(total), up);
    in += layout_.bytes(part);
  }
  if (what_.residual != nullptr && what_.count > 0)
    up.copy(what_.residual, device(places_.residual), what_.count * sizeof(float));
}

void CompressedJob::run(const Execute& execute, const Await& await) {
  if (failure_) failure_.raise();
  if (layout_.ranks() == 1) {  // Nothing changes.
    lane_.up().wait(encoded_);
    return end_.note_launched(lane_.up());
  }
  await([&] { return encoded_.is_passed(); });
  Operation exchange = layout_.exchange();
  exchange.input = pinned(places_.out);
  exchange.output = pinned(places_.in);
  execute(exchange);
  add_up();
  await([&] { return added_.is_passed(); });
  Operation spread = layout_.spread();
  spread.input = pinned(places_.out);
  spread.output = pinned(places_.in);
  execute(spread);
  put_together();
  end_.note_launched(lane_.up());
}

void CompressedJob::leave() noexcept {
  try {
    quiet_.record(lane_.up());
  } catch (const std::exception&) {
    // A device at fault does nothing any more.
  }
  has_left_.store(true, std::memory_order_release);
  end_.note_over();
}

CompressedLane::~CompressedLane() {
  const auto& runtime = device_.runtime();
  runtime.stream_synchronize(device_.index(), down_.handle());
  runtime.stream_synchronize(device_.index(), up_.handle());
}

std::shared_ptr<CompressedJob> CompressedLane::make_job(const Compressed& what,
                                                        const CompressedLayout& layout) {
  auto job = std::make_shared<CompressedJob>(*this, what, layout);
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [&](const std::shared_ptr<CompressedJob>& known) {
    if (!known->is_over()) return false;
    if (auto memory = known->take_memory()) free_.push_back(std::move(memory));
    return true;
  });
  jobs_.push_back(job);
  return job;
}

// The smallest that is large enough. Where none is, one that is too small makes way.
std::unique_ptr<CompressedMemory> CompressedLane::take(std::size_t device_bytes,
                                                       std::size_t pinned_bytes) {
  std::unique_ptr<CompressedMemory> found;
  {
    const std::lock_guard lock(mutex_);
    auto best = free_.end();
    for (auto one = free_.begin(); one != free_.end(); ++one) {
      const bool fits =
          (*one)->device.bytes() >= device_bytes && (*one)->pinned.bytes() >= pinned_bytes;
      if (fits && (best == free_.end() || (*one)->device.bytes() < (*best)->device.bytes()))
        best = one;
    }
    const bool is_there = best != free_.end();
    if (!is_there && !free_.empty()) best = free_.begin();
    if (best != free_.end()) {
      found = std::move(*best);
      free_.erase(best);
    }
    if (is_there) return found;
  }
  found = nullptr;
  return std::make_unique<CompressedMemory>(device_, rounded(device_bytes + 1, kGrain),
                                            rounded(pinned_bytes + 1, kGrain));
}

}  // namespace gradring::collectives
