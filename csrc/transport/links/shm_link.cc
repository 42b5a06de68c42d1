#include "transport/links/shm_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "base/copy_bytes.h"

namespace gradring::transport {

ShmLink::ShmLink(SharedMemory memory, Fd doorbell, bool is_creator)
    : memory_(std::move(memory)), doorbell_(std::move(doorbell)) {
  auto* rings =
      reinterpret_cast<ShmRing*>(memory_.data());  // Fresh memory is all zeros: two empty rings.
  out_ = is_creator ? &rings[0] : &rings[1];
  in_ = is_creator ? &rings[1] : &rings[0];
  memory_.forget_fd();
}

Io ShmLink::send_some(std::span<const std::byte> head, std::span<const std::byte> body) {
  if (peer_gone_) return {0, true};
  std::size_t sent = put(head);
  if (sent == head.size()) sent += put(body);
  if (sent > 0 && out_->reader_sleeps.load(std::memory_order_seq_cst) != 0) ring_doorbell();
  return {sent, sent == 0 && peer_gone_};
}

Io ShmLink::recv_some(std::span<std::byte> head, std::span<std::byte> body) {
  std::size_t got = take(head);
  if (got == head.size()) got += take(body);
  if (got > 0 && in_->writer_sleeps.load(std::memory_order_seq_cst) != 0) ring_doorbell();
  if (got == 0 && peer_gone_) {
    // The peer's last bytes were written before its socket closed: look once more.
    got = take(head);
    if (got == head.size()) got += take(body);
    return {got, got == 0};
  }
  return {got, false};
}

void ShmLink::hang_up() {
  ::shutdown(doorbell_.get(), SHUT_WR);
}

std::size_t ShmLink::put(std::span<const std::byte> bytes) {
  const std::uint64_t written = out_->written.load(std::memory_order_relaxed);
  const std::uint64_t used = written - out_->read.load(std::memory_order_acquire);
  // A peer that writes nonsense into the counters can only end its own link, never make us write
  // outside the ring.
  if (used > limits::kRingBytes) peer_gone_ = true;
  if (used > limits::kRingBytes) return 0;
  const std::size_t count = std::min<std::size_t>(bytes.size(), limits::kRingBytes - used);
  if (count == 0) return 0;
  const std::size_t at = written % limits::kRingBytes;
  const std::size_t first = std::min(count, limits::kRingBytes - at);
  if (count < RingWrites::kLeastBytes) {
    copy_bytes(out_->bytes + at, bytes.data(), first);
    copy_bytes(out_->bytes, bytes.data() + first, count - first);
  } else {
    const Ticks begin = ticks_now();
    write_long(at, bytes.first(first));
    write_long(0, bytes.subspan(first, count - first));
    writes_.note(count, ticks_now() - begin);
  }
  out_->written.store(written + count, std::memory_order_seq_cst);
  return count;
}

void ShmLink::write_long(std::size_t at, std::span<const std::byte> bytes) {
  if (!writes_.goes_past()) return copy_bytes(out_->bytes + at, bytes.data(), bytes.size());
  stream_bytes(out_->bytes + at, bytes.data(), bytes.size());
  end_streams();
}

std::size_t ShmLink::take(std::span<std::byte> bytes) {
  const std::uint64_t read = in_->read.load(std::memory_order_relaxed);
  const std::uint64_t ready = in_->written.load(std::memory_order_acquire) - read;
  // Left alone it would always look as if there were something to read, and nobody could sleep.
  if (ready > limits::kRingBytes) peer_gone_ = true;
  if (ready > limits::kRingBytes) return 0;
  const std::size_t count = std::min<std::size_t>(bytes.size(), ready);
  if (count == 0) return 0;
  const std::size_t at = read % limits::kRingBytes;
  const std::size_t first = std::min(count, limits::kRingBytes - at);
  copy_from_core(bytes.data(), in_->bytes + at, first);
  copy_from_core(bytes.data() + first, in_->bytes, count - first);
  in_->read.store(read + count, std::memory_order_seq_cst);
  return count;
}

bool ShmLink::prepare_sleep(bool wants_recv, bool wants_send) {
  if (wants_recv) {
    in_->reader_sleeps.store(1, std::memory_order_seq_cst);
    if (in_->written.load(std::memory_order_seq_cst) != in_->read.load(std::memory_order_relaxed))
      return false;
  }
  if (wants_send) {
    out_->writer_sleeps.store(1, std::memory_order_seq_cst);
    if (out_->written.load(std::memory_order_relaxed) - out_->read.load(std::memory_order_seq_cst) <
        limits::kRingBytes)
      return false;
  }
  return !peer_gone_;
}

void ShmLink::finish_sleep() {
  in_->reader_sleeps.store(0, std::memory_order_relaxed);
  out_->writer_sleeps.store(0, std::memory_order_relaxed);
  drain_doorbell();
}

short ShmLink::poll_events(bool, bool) const {
  return POLLIN;
}  // Wake-ups for both directions come as bytes to read.

void ShmLink::ring_doorbell() {
  const std::byte byte{1};
  // A full socket buffer means that plenty of wake-ups are under way already.
  if (transport::send_some(doorbell_.get(), std::span(&byte, 1), {}).closed) peer_gone_ = true;
}

void ShmLink::drain_doorbell() {
  std::array<std::byte, 64> bytes{};
  while (true) {
    const Io io = transport::recv_some(doorbell_.get(), bytes, {});
    if (io.closed) peer_gone_ = true;
    if (io.bytes < bytes.size()) return;
  }
}

}  // namespace gradring::transport
