#include "wire/messages.h"

#include <bit>
#include <cstring>

#include "wire/bytes.h"

namespace gradring::wire {
namespace {

constexpr std::size_t kErrorKindCount = 11;

void put(Writer& out, const Member& member) {
  out.put(member.rank);
  out.put_text(member.tcp_address);
  out.put_text(member.unix_name);
  out.put_text(member.host_key);
  out.put(member.link_mbit);
  out.put(member.path_us);
  out.put_text(member.processors);
  out.put(member.control_group);
  out.put(member.quota_percent);
}

Member get_member(Reader& in) {
  Member member;
  member.rank = in.get<Rank>();
  member.tcp_address = in.get_text();
  member.unix_name = in.get_text();
  member.host_key = in.get_text();
  member.link_mbit = in.get<std::uint32_t>();
  member.path_us = in.get<std::uint32_t>();
  member.processors = in.get_text();
  member.control_group = in.get<std::uint64_t>();
  member.quota_percent = in.get<std::uint32_t>();
  return member;
}

void put(Writer& out, const Call& call) {
  out.put(call.op);
  out.put(call.dtype);
  out.put(call.reduce_op);
  out.put(call.algorithm);
  out.put(call.root);
  out.put(call.count);
  out.put(call.counts_hash);
}

Call get_call(Reader& in) {
  Call call;
  call.op = in.get_enum<OpKind>(kOpKindCount);
  call.dtype = in.get_enum<DType>(kDTypeCount);
  call.reduce_op = in.get_enum<ReduceOp>(kReduceOpCount);
  call.algorithm = in.get<std::uint8_t>();
  call.root = in.get<Rank>();
  call.count = in.get<std::uint64_t>();
  call.counts_hash = in.get<std::uint64_t>();
  return call;
}

void put_calls_before(Writer& out, const std::vector<Call>& calls) {
  const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(calls.size(), kCallsBefore));
  out.put(count);
  for (std::uint32_t i = 0; i < count; ++i) put(out, calls[i]);
}

void put(Writer& out, const std::vector<Rank>& ranks) {
  out.put(static_cast<std::uint32_t>(ranks.size()));
  for (const Rank rank : ranks) out.put(rank);
}

std::vector<Rank> get_ranks(Reader& in) {
  std::vector<Rank> ranks(in.get_count(limits::kWorldSize));
  for (Rank& rank : ranks) rank = in.get<Rank>();
  return ranks;
}

void put(Writer& out, double value) {
  out.put(std::bit_cast<std::uint64_t>(value));
}

double get_double(Reader& in) {
  return std::bit_cast<double>(in.get<std::uint64_t>());
}

void put(Writer& out, const std::optional<LinkCosts>& costs) {
  out.put(static_cast<std::uint8_t>(costs.has_value()));
  if (!costs) return;
  put(out, costs->latency_us);
  put(out, costs->bandwidth_gb_s);
  put(out, costs->reduce_gb_s);
  put(out, costs->further_link);
}

std::optional<LinkCosts> get_costs(Reader& in) {
  if (in.get<std::uint8_t>() == 0) return std::nullopt;
  LinkCosts costs;
  costs.latency_us = get_double(in);
  costs.bandwidth_gb_s = get_double(in);
  costs.reduce_gb_s = get_double(in);
  costs.further_link = get_double(in);
  if (!is_sound(costs)) throw ProtocolError("the costs in a welcome make no sense");
  return costs;
}

struct Encoder {
  Writer& out;
  void operator()(const Join& m) const {
    out.put(m.world_size);
    put(out, m.member);
    out.put(m.mode);
  }
  void operator()(const Welcome& m) const {
    out.put_bytes(m.session);
    out.put(static_cast<std::uint32_t>(m.members.size()));
    for (const Member& member : m.members) put(out, member);
    put(out, m.costs.tcp);
    put(out, m.costs.shared_memory);
    out.put_text(m.meeting_point);
    out.put(m.streams);
  }
  void operator()(const Refused& m) const {
    out.put_text(m.text);
    out.put(static_cast<std::uint8_t>(m.may_come_again));
  }
  void operator()(const Heartbeat& m) const {
    const auto count =
        static_cast<std::uint32_t>(std::min<std::size_t>(m.calls.size(), kCallsPerHeartbeat));
    out.put(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const CallState& state = m.calls[i];
      out.put(state.communicator);
      out.put(state.seq);
      out.put(static_cast<std::uint8_t>(state.in_progress));
      put(out, state.call);
      out.put(state.members_hash);
      out.put_text(state.made_by);
      put_calls_before(out, state.before);
    }
  }
  void operator()(const Lost& m) const {
    out.put(m.rank);
    out.put(static_cast<std::uint8_t>(m.has_left));
    out.put_text(m.text);
  }
  void operator()(const Abort& m) const {
    out.put(m.communicator);
    out.put(m.seq);
    out.put(m.origin);
    out.put(m.failure.kind);
    out.put(m.failure.rank);
    out.put_text(m.failure.text);
  }
  void operator()(const Bye&) const {}
  void operator()(const ShrinkRequest& m) const {
    out.put(m.communicator);
    put(out, m.members);
  }
  void operator()(const ShrinkReply& m) const {
    out.put(m.communicator);
    put(out, m.survivors);
  }
  void operator()(const Left& m) const {
    out.put(m.communicator);
    out.put(m.rank);
    put(out, m.members);
  }
  void operator()(const ShrinkWait& m) const {
    out.put(m.communicator);
    out.put(m.count);
    put(out, m.missing);
  }
  void operator()(const Doubt& m) const {
    out.put(m.rank);
    out.put_text(m.text);
  }
  void operator()(const Invitation& m) const {
    out.put(m.rank);
    out.put(m.world_size);
    out.put(m.port);
    out.put(m.mode);
    out.put_text(m.host_key);
    out.put(m.patience_ms);
    out.put(m.timeout_ms);
    out.put(m.heartbeat_timeout_ms);
  }
  void operator()(const Grown& m) const { out.put(static_cast<std::uint8_t>(m.is_done)); }
};

Welcome get_welcome(Reader& in) {
  Welcome m;
  std::memcpy(m.session.data(), in.take(m.session.size()).data(), m.session.size());
  const auto count = in.get_count(limits::kWorldSize);
  for (std::uint32_t i = 0; i < count; ++i) m.members.push_back(get_member(in));
  m.costs.tcp = get_costs(in);
  m.costs.shared_memory = get_costs(in);
  m.meeting_point = in.get_text();
  m.streams = in.get_count(limits::kStreams);
  if (m.streams == 0) throw ProtocolError("a welcome to links of no connection");
  return m;
}

// Times that no clock holds would overflow where they are added to one.
std::uint64_t get_millis(Reader& in) {
  const auto millis = in.get<std::uint64_t>();
  if (millis > limits::kLongestMillis) throw ProtocolError("a time in an invitation is too long");
  return millis;
}

Invitation get_invitation(Reader& in) {
  Invitation m;
  m.rank = in.get<Rank>();
  m.world_size = in.get<std::uint32_t>();
  m.port = in.get<std::uint32_t>();
  m.mode = in.get_enum<TransportMode>(kTransportModeCount);
  m.host_key = in.get_text();
  m.patience_ms = get_millis(in);
  m.timeout_ms = get_millis(in);
  m.heartbeat_timeout_ms = get_millis(in);
  if (m.rank < 0 || m.world_size > limits::kWorldSize ||
      static_cast<std::uint32_t>(m.rank) >= m.world_size || m.port > 0xffff)
    throw ProtocolError("an invitation makes no sense");
  return m;
}

Heartbeat get_heartbeat(Reader& in) {
  Heartbeat m;
  m.calls.resize(in.get_count(kCallsPerHeartbeat));
  for (CallState& state : m.calls) {
    state.communicator = in.get<std::uint64_t>();
    state.seq = in.get<std::uint64_t>();
    state.in_progress = in.get<std::uint8_t>() != 0;
    state.call = get_call(in);
    state.members_hash = in.get<std::uint64_t>();
    state.made_by = in.get_text();
    state.before.resize(in.get_count(kCallsBefore));
    for (Call& call : state.before) call = get_call(in);
  }
  return m;
}

Abort get_abort(Reader& in) {
  Abort m;
  m.communicator = in.get<std::uint64_t>();
  m.seq = in.get<std::uint64_t>();
  m.origin = in.get<Rank>();
  m.failure.kind = in.get_enum<ErrorKind>(kErrorKindCount);
  m.failure.rank = in.get<Rank>();
  m.failure.text = in.get_text();
  return m;
}

// In the order of the variant's alternatives, which is the type byte on the wire.
Message get_message(Reader& in, std::uint8_t type) {
  switch (type) {
    case 0: {
      Join m;
      m.world_size = in.get<std::uint32_t>();
      m.member = get_member(in);
      m.mode = in.get_enum<TransportMode>(kTransportModeCount);
      return m;
    }
    case 1: return get_welcome(in);
    case 2: {
      Refused m{in.get_text()};
      m.may_come_again = in.get<std::uint8_t>() != 0;
      return m;
    }
    case 3: return get_heartbeat(in);
    case 4: {
      Lost m;
      m.rank = in.get<Rank>();
      m.has_left = in.get<std::uint8_t>() != 0;
      m.text = in.get_text();
      return m;
    }
    case 5: return get_abort(in);
    case 6: return Bye{};
    case 7: {
      ShrinkRequest m;
      m.communicator = in.get<std::uint64_t>();
      m.members = get_ranks(in);
      return m;
    }
    case 8: {
      ShrinkReply m;
      m.communicator = in.get<std::uint64_t>();
      m.survivors = get_ranks(in);
      return m;
    }
    case 9: {
      Left m;
      m.communicator = in.get<std::uint64_t>();
      m.rank = in.get<Rank>();
      m.members = get_ranks(in);
      return m;
    }
    case 10: {
      ShrinkWait m;
      m.communicator = in.get<std::uint64_t>();
      m.count = in.get<std::uint32_t>();
      m.missing = get_ranks(in);
      return m;
    }
    case 11: {
      Doubt m;
      m.rank = in.get<Rank>();
      m.text = in.get_text();
      return m;
    }
    case 12: return get_invitation(in);
    case 13: return Grown{in.get<std::uint8_t>() != 0};
    default: throw ProtocolError(str("control message of unknown type ", int{type}));
  }
}

}  // namespace

std::string_view name(TransportMode mode) {
  switch (mode) {
    case TransportMode::kAuto: return "auto";
    case TransportMode::kShm: return "shm";
    case TransportMode::kTcp: return "tcp";
  }
  return "unknown transport";
}

std::vector<std::byte> encode(const Message& message) {
  Writer out;
  out.put(static_cast<std::uint8_t>(message.index()));
  std::visit(Encoder{out}, message);
  return out.take();
}

Message decode_message(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const auto type = in.get<std::uint8_t>();
  Message message = get_message(in, type);
  in.finish();
  return message;
}

}  // namespace gradring::wire
