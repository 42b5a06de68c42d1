#include "support/ps/net.h"

#include "support/ps/requests.h"

namespace gradring::testing {
namespace {

ps::ClientCoreOptions options_for(std::uint32_t shards) {
  ps::ClientCoreOptions options;
  options.hello = {7, 1};
  for (std::uint32_t shard = 0; shard < shards; ++shard)
    options.addresses.push_back(str("server-", shard, ":1"));
  options.answer_time = Millis{500};
  return options;
}

}  // namespace

ps::TableSpec counting_table(const std::string& name, std::uint32_t dim) {
  ps::TableSpec spec;
  spec.name = name;
  spec.dim = dim;
  spec.rule.kind = kernels::RuleKind::kSum;
  return spec;
}

PsNet::PsNet(std::uint32_t shards) : core_(options_for(shards)), seats_(shards) {
  for (std::uint32_t number = 0; number < shards; ++number)
    seats_[number].shard = make_shard(number);
}

std::unique_ptr<ps::Shard> PsNet::make_shard(std::uint32_t number) {
  ps::ShardOptions options;
  options.shard = number;
  options.shards = shards();
  options.incarnation = ++incarnations_;
  return std::make_unique<ps::Shard>(options, journal_);
}

void PsNet::settle() {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::uint32_t number = 0; number < shards(); ++number) moved |= step(number);
  }
}

void PsNet::pass(Millis time) {
  constexpr Millis kStep{5};
  for (Millis passed{0}; passed < time; passed += kStep) {
    now_ += kStep;
    settle();
    core_.tick(now_);
    for (std::uint32_t number = 0; number < shards(); ++number) {
      std::vector<ps::Answer> given;
      seats_[number].shard->tick(now_, given);
      give_answers(number, given);
    }
  }
  settle();
}

void PsNet::run(const std::shared_ptr<ps::Call>& call) {
  submit(call);
  settle();
  for (int beats = 0; beats < 1000 && !call->is_done(); ++beats) pass(Millis{10});
}

void PsNet::disconnect(std::uint32_t number) {
  Seat& seat = seats_[number];
  if (seat.connection == 0) return;
  seat.shard->disconnected(seat.connection, now_);
  seat.connection = 0;
  seat.to_shard.clear();
  seat.to_client.clear();
  core_.session(number).disconnected("the connection broke", now_);
}

void PsNet::close(std::uint32_t number, bool is_closed) {
  seats_[number].is_closed = is_closed;
  if (is_closed) disconnect(number);
}

void PsNet::restart_empty(std::uint32_t number) {
  disconnect(number);
  seats_[number].shard = make_shard(number);
}

bool PsNet::step(std::uint32_t number) {
  Seat& seat = seats_[number];
  ps::Session& session = core_.session(number);
  if (seat.connection != 0 && session.wants_hang_up()) disconnect(number);
  if (seat.connection == 0) {
    if (!session.wants_connection(now_)) return false;
    if (seat.is_closed) {
      session.disconnected("connection refused", now_);
      return true;
    }
    seat.connection = ++last_connection_;
    seat.shard->connected(seat.connection, now_);
    session.connected(now_);
    return true;
  }
  bool moved = take_output(number);
  if (seat.connection != 0) moved |= hand_in(number) || let_out(number);
  if (seat.connection != 0) moved |= hand_out(number);
  return moved;
}

bool PsNet::take_output(std::uint32_t number) {
  Seat& seat = seats_[number];
  ps::Session& session = core_.session(number);
  const ps::Output output = session.output(now_);
  if (output.is_empty()) return false;
  Bytes bytes;
  for (const auto span : output.spans) ps::put_bytes(bytes, span);
  session.sent(bytes.size(), now_);
  ++frames_sent_;
  ps::Frame frame;
  frame.header = wire::decode_ps_header(
      std::span<const std::byte, wire::kPsHeaderBytes>(bytes.data(), wire::kPsHeaderBytes));
  ps::put_bytes(frame.payload, std::span(bytes).subspan(wire::kPsHeaderBytes));
  GRADRING_ASSERT(frame.header.payload_bytes == frame.payload.size());
  const int times = requests ? requests(number, frame.header) : 1;
  for (int copy = 0; copy < times; ++copy) seat.to_shard.push_back(frame);
  if (times == 0) disconnect(number);
  return true;
}

bool PsNet::hand_in(std::uint32_t number) {
  Seat& seat = seats_[number];
  if (seat.to_shard.empty() || now_ < seat.next_frame) return false;
  if (!seat.shard->takes_from(seat.connection) &&
      !ps::is_control(seat.to_shard.front().header.type))
    return false;
  ps::Frame frame = std::move(seat.to_shard.front());
  seat.to_shard.pop_front();
  seat.next_frame = now_ + frame_time_;
  std::vector<ps::Answer> given;
  seat.shard->receive(seat.connection, std::move(frame), now_, given);
  give_answers(number, given);
  return true;
}

bool PsNet::let_out(std::uint32_t number) {
  Seat& seat = seats_[number];
  if (!seat.to_client.empty() || !seat.shard->has_more(seat.connection)) return false;
  std::vector<ps::Answer> given;
  seat.shard->go_on(seat.connection, now_, given);
  give_answers(number, given);
  return true;
}

void PsNet::give_answers(std::uint32_t number, std::vector<ps::Answer>& given) {
  Seat& seat = seats_[number];
  for (ps::Answer& answer : given) {
    if (answer.to != seat.connection || seat.connection == 0) continue;
    const ps::Frame frame = arrived(std::move(answer));
    const int times = answers ? answers(number, frame.header) : 1;
    if (times == 0) return disconnect(number);
    for (int copy = 0; copy < times; ++copy) seat.to_client.push_back(frame);
  }
}

bool PsNet::hand_out(std::uint32_t number) {
  Seat& seat = seats_[number];
  if (seat.to_client.empty()) return false;
  const ps::Frame frame = std::move(seat.to_client.front());
  seat.to_client.pop_front();
  core_.receive(number, frame.header, frame.payload, now_);
  return true;
}

std::shared_ptr<ps::RemoteTable> PsNet::make_table(const ps::TableSpec& spec) {
  const auto call = std::make_shared<ps::PlainCall>("make table");
  wire::PsHeader header;
  header.type = wire::PsType::kMakeTable;
  Bytes head;
  ps::put(head, spec);
  call->add_to_all(shards(), header, head);
  run(call);
  if (call->failure()) call->failure().raise();
  return std::make_shared<ps::RemoteTable>(spec, shards());
}

}  // namespace gradring::testing
