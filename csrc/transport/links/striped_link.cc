#include "transport/links/striped_link.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "transport/links/resolve.h"

namespace gradring::transport {
namespace {

// Bytes that may still go into a piece, of two spans of which the first comes first.
struct Parts {
  Parts(std::span<const std::byte> first, std::span<const std::byte> second, std::size_t most)
      : head(first.first(std::min(first.size(), most))),
        body(second.first(std::min(second.size(), most - head.size()))) {}
  std::size_t size() const { return head.size() + body.size(); }

  std::span<const std::byte> head;
  std::span<const std::byte> body;
};

template <typename Byte>
void skip(std::span<Byte>& head, std::span<Byte>& body, std::size_t bytes) {
  const std::size_t of_head = std::min(bytes, head.size());
  head = head.subspan(of_head);
  body = body.subspan(bytes - of_head);
}

}  // namespace

StripedLink::StripedLink(std::vector<std::unique_ptr<Link>> streams) {
  GRADRING_ASSERT(!streams.empty());
  for (auto& link : streams) {
    streams_.emplace_back();
    streams_.back().link = std::move(link);
  }
  if (streams_.front().link->fd() < 0) return;
  sleeper_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!sleeper_)
    throw DeviceError(str("a link of several streams: ", errno_text(errno), limit_hint(errno)));
}

StripedLink::PieceBytes StripedLink::encode(const Piece& piece) {
  PieceBytes bytes;
  std::memcpy(bytes.data(), &piece.number, 4);
  std::memcpy(bytes.data() + 4, &piece.bytes, 4);
  return bytes;
}

StripedLink::Piece StripedLink::decode(const PieceBytes& bytes) {
  Piece piece;
  std::memcpy(&piece.number, bytes.data(), 4);
  std::memcpy(&piece.bytes, bytes.data() + 4, 4);
  return piece;
}

Io StripedLink::send_some(std::span<const std::byte> head, std::span<const std::byte> body) {
  std::size_t sent = 0;
  std::size_t passed_over = 0;
  while (!head.empty() || !body.empty()) {
    if (out_left_ == 0) {
      out_left_ = Parts(head, body, kPieceBytes).size();
      out_head_ = encode({next_to_send_, static_cast<std::uint32_t>(out_left_)});
      out_head_bytes_ = 0;
    }
    const bool is_short = out_left_ <= kShortBytes;
    const Io io = send_piece(head, body);
    if (io.closed) return {sent, true};
    skip(head, body, io.bytes);
    sent += io.bytes;
    if (out_head_bytes_ == 0) {
      out_left_ = 0;  // Not begun: whoever takes something may have it.
      sending_ = (sending_ + 1) % streams_.size();
      if (++passed_over == streams_.size()) break;
      continue;
    }
    if (out_left_ > 0) break;
    passed_over = 0;
    ++next_to_send_;
    if (!is_short) sending_ = (sending_ + 1) % streams_.size();
  }
  return {sent, false};
}

// What stands before the piece, if it is not gone yet, and as much of the piece as is taken. Its
// bytes do not count what stands before.
Io StripedLink::send_piece(std::span<const std::byte> head, std::span<const std::byte> body) {
  const Parts parts(head, body, out_left_);
  Link& link = *streams_[sending_].link;
  Io io;
  std::size_t of_head = 0;
  if (out_head_bytes_ == out_head_.size()) {
    io = link.send_some(parts.head, parts.body);
  } else {
    // A link takes two spans: headers are short enough to be copied together.
    std::array<std::byte, 256> front;
    of_head = out_head_.size() - out_head_bytes_;
    const std::size_t copied = std::min(parts.head.size(), front.size() - of_head);
    std::copy_n(out_head_.data() + out_head_bytes_, of_head, front.data());
    std::copy_n(parts.head.data(), copied, front.data() + of_head);
    const bool is_whole = copied == parts.head.size();
    io = link.send_some(std::span(front).first(of_head + copied),
                        is_whole ? parts.body : std::span<const std::byte>{});
    of_head = std::min(of_head, io.bytes);
    out_head_bytes_ += of_head;
  }
  io.bytes -= of_head;
  out_left_ -= io.bytes;
  return io;
}

Io StripedLink::recv_some(std::span<std::byte> head, std::span<std::byte> body) {
  std::size_t got = 0;
  while (!head.empty() || !body.empty()) {
    if (in_left_ == 0 && !find_next()) break;
    Stream& stream = streams_[receiving_];
    const auto of_head = head.first(std::min(head.size(), in_left_));
    const auto of_body = body.first(std::min(body.size(), in_left_ - of_head.size()));
    const Io io = stream.link->recv_some(of_head, of_body);
    skip(head, body, io.bytes);
    got += io.bytes;
    in_left_ -= io.bytes;
    if (io.closed) note_end(stream);
    if (io.bytes < of_head.size() + of_body.size()) break;
  }
  return {got, got == 0 && (!head.empty() || !body.empty()) && is_over()};
}

// Looks at the beginnings of pieces for the one that is to come.
bool StripedLink::find_next() {
  for (std::size_t nth = 0; nth < streams_.size(); ++nth) {
    const std::size_t index = (receiving_ + nth) % streams_.size();
    Stream& stream = streams_[index];
    if (!read_head(stream) || !has_next(stream)) continue;
    stream.head_bytes = 0;
    receiving_ = index;
    in_left_ = decode(stream.head).bytes;
    ++next_;
    return true;
  }
  return false;
}

// True if it is there.
bool StripedLink::read_head(Stream& stream) {
  if (stream.head_bytes == stream.head.size()) return true;
  if (stream.has_ended) return false;
  const Io io = stream.link->recv_some(std::span(stream.head).subspan(stream.head_bytes), {});
  stream.head_bytes += io.bytes;
  if (io.closed) note_end(stream);
  return stream.head_bytes == stream.head.size();
}

bool StripedLink::has_next(const Stream& stream) const {
  return stream.head_bytes == stream.head.size() && decode(stream.head).number == next_;
}

// A link is whole or broken. If only one stream broke, the peer is told by the others, so that it
// ends them, too: what it sent over them before is still to come.
void StripedLink::note_end(Stream& stream) {
  if (!stream.has_ended) hang_up();
  stream.has_ended = true;
}

// Whether the piece that is to come can come no more.
bool StripedLink::is_over() const {
  if (in_left_ > 0) return streams_[receiving_].has_ended;
  return std::all_of(streams_.begin(), streams_.end(), [](const Stream& stream) {
    return stream.has_ended || stream.head_bytes == stream.head.size();
  });
}

// Streams that are ahead are let alone: what they have would wake whoever sleeps for another.
bool StripedLink::waits_for(const Stream& stream, bool wants_recv, bool wants_send,
                            short& events) const {
  const auto index = static_cast<std::size_t>(&stream - streams_.data());
  const bool has_next = in_left_ > 0 ? index == receiving_ : stream.head_bytes < stream.head.size();
  const bool reads = wants_recv && has_next && !stream.has_ended;
  const bool writes = wants_send && (out_left_ == 0 || index == sending_);
  events = reads || writes ? stream.link->poll_events(reads, writes) : short{0};
  return (!reads && !writes) || stream.link->prepare_sleep(reads, writes);
}

bool StripedLink::prepare_sleep(bool wants_recv, bool wants_send) {
  // A beginning that was read while another was looked for, or an end, wakes nobody a second time.
  const bool has_begun =
      in_left_ == 0 &&
      std::ranges::any_of(streams_, [this](const Stream& stream) { return has_next(stream); });
  bool may_sleep = !wants_recv || !(has_begun || is_over());
  for (Stream& stream : streams_) {
    short events = 0;
    may_sleep &= waits_for(stream, wants_recv, wants_send, events);
    const auto asked = (events & POLLIN ? std::uint32_t{EPOLLIN} : 0u) |
                       (events & POLLOUT ? std::uint32_t{EPOLLOUT} : 0u);
    if (!sleeper_ || asked == stream.asked) continue;
    epoll_event event{};
    event.events = asked;
    // One that is not waited for is not in there: its end would be told all the same.
    const int change = asked == 0          ? EPOLL_CTL_DEL
                       : stream.asked == 0 ? EPOLL_CTL_ADD
                                           : EPOLL_CTL_MOD;
    if (::epoll_ctl(sleeper_.get(), change, stream.link->fd(), &event) != 0)
      throw DeviceError(str("a link of several streams: ", errno_text(errno)));
    stream.asked = asked;
  }
  return may_sleep;
}

void StripedLink::finish_sleep() {
  for (const Stream& stream : streams_) stream.link->finish_sleep();
}

short StripedLink::poll_events(bool wants_recv, bool wants_send) const {
  return wants_recv || wants_send ? short{POLLIN} : short{0};
}

void StripedLink::hang_up() {
  for (const Stream& stream : streams_) stream.link->hang_up();
}

}  // namespace gradring::transport
