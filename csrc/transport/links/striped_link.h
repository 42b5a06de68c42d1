// StripedLink: a Link over several others, for ways on which one connection carries less than the
// path holds: a cloud's limit for each flow, a window that a round trip holds back, losses. What is
// sent goes in pieces, each over one of the streams, with its number before it; the receiver takes
// them by number. A stream that takes nothing is passed over, so that uneven ones are all full. Who
// owns it, and on which thread, is as of any Link.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/links/fd.h"
#include "transport/links/link.h"

namespace gradring::transport {

class StripedLink final : public Link {
 public:
  // What may wait in a stream to be sent: with more, a slow one would have taken what others could
  // carry, and the receiver would wait for that.
  static constexpr int kUnsentBytes = 128 * 1024;

  // Both ends have equally many, in any order.
  explicit StripedLink(std::vector<std::unique_ptr<Link>> streams);

  Io send_some(std::span<const std::byte> head, std::span<const std::byte> body) override;
  Io recv_some(std::span<std::byte> head, std::span<std::byte> body) override;
  bool prepare_sleep(bool wants_recv, bool wants_send) override;
  void finish_sleep() override;
  int fd() const override { return sleeper_.get(); }
  short poll_events(bool wants_recv, bool wants_send) const override;
  void hang_up() override;
  std::string peer_address() const override { return streams_.front().link->peer_address(); }

 private:
  // Little enough that streams share the end of a message evenly, enough that what stands before
  // each and the two system calls for it cost nothing.
  static constexpr std::size_t kPieceBytes = 128 * 1024;
  // Shorter ones follow each other over one stream, and come in order.
  static constexpr std::size_t kShortBytes = 16 * 1024;

  struct Piece {
    std::uint32_t number = 0;  // Modulo 2^32: there are never so many under way.
    std::uint32_t bytes = 0;
  };
  using PieceBytes = std::array<std::byte, 8>;
  static PieceBytes encode(const Piece& piece);
  static Piece decode(const PieceBytes& bytes);

  struct Stream {
    std::unique_ptr<Link> link;
    PieceBytes head{};           // Of the piece that comes next in here.
    std::size_t head_bytes = 0;  // That have come.
    bool has_ended = false;
    std::uint32_t asked = 0;  // What the sleeper waits for, as of epoll.
  };

  Io send_piece(std::span<const std::byte> head, std::span<const std::byte> body);
  bool find_next();
  bool read_head(Stream& stream);
  bool has_next(const Stream& stream) const;
  bool is_over() const;
  void note_end(Stream& stream);
  bool waits_for(const Stream& stream, bool wants_recv, bool wants_send, short& events) const;

  std::vector<Stream> streams_;
  Fd sleeper_;  // An epoll of all; none where streams have nothing to poll.

  // What is being sent: `sending_` is the stream of the piece that is under way, or of the next.
  std::size_t sending_ = 0;
  std::uint32_t next_to_send_ = 0;
  PieceBytes out_head_{};
  std::size_t out_head_bytes_ = 0;  // Of it, that are gone.
  std::size_t out_left_ = 0;        // Of the piece's bytes; 0: none is under way.

  // And received: `receiving_` has the piece with the number `next_`, if in_left_ is not 0.
  std::size_t receiving_ = 0;
  std::uint32_t next_ = 0;
  std::size_t in_left_ = 0;
};

}  // namespace gradring::transport
