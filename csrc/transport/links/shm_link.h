// Link over two single-producer single-consumer byte rings in shared memory. The Unix socket over
// which the memory was passed stays open as a doorbell: a sleeper is woken by one byte on it, and
// its end of file says that the peer is gone. So a wait on shared-memory and TCP links together is
// one poll().
#pragma once

#include <atomic>
#include <cstdint>

#include "base/config.h"
#include "transport/links/link.h"
#include "transport/links/ring_writes.h"
#include "transport/links/shared_memory.h"

namespace gradring::transport {

// One direction. `written` and `read` only grow; written - read bytes are in the ring.
struct alignas(64) ShmRing {
  alignas(
      64) std::atomic<std::uint64_t> written;   // Writer stores (release), reader loads (acquire).
  alignas(64) std::atomic<std::uint64_t> read;  // Reader stores (release), writer loads (acquire).
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;  // Set before sleeping, then `written` is
                                                         // read again (seq_cst both):
  alignas(64) std::atomic<std::uint32_t> writer_sleeps;  // either the sleeper sees the bytes or the
                                                         // other side sees the flag.
  alignas(64) std::byte bytes[limits::kRingBytes];
};

class ShmLink final : public Link {
 public:
  static constexpr std::size_t kMemoryBytes = 2 * sizeof(ShmRing);
  // `is_creator` says which ring is whose. The socket is non-blocking and has passed the handshake.
  ShmLink(SharedMemory memory, Fd doorbell, bool is_creator);

  Io send_some(std::span<const std::byte> head, std::span<const std::byte> body) override;
  void hang_up() override;
  Io recv_some(std::span<std::byte> head, std::span<std::byte> body) override;
  bool prepare_sleep(bool wants_recv, bool wants_send) override;
  void finish_sleep() override;
  int fd() const override { return doorbell_.get(); }
  short poll_events(bool wants_recv, bool wants_send) const override;
  std::string peer_address() const override { return "shared memory"; }

 private:
  std::size_t put(std::span<const std::byte> bytes);
  void write_long(std::size_t at, std::span<const std::byte> bytes);
  std::size_t take(std::span<std::byte> bytes);
  void ring_doorbell();
  void drain_doorbell();

  SharedMemory memory_;
  Fd doorbell_;
  ShmRing* out_;
  ShmRing* in_;
  RingWrites writes_;
  bool peer_gone_ = false;
};

}  // namespace gradring::transport
