// PsNet: a client core and the shards of a parameter server in one thread, connected by hand: every
// frame is taken off one side and given to the other, unless a test loses, repeats or keeps it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "ps/client/client_core.h"
#include "ps/client/plain_call.h"
#include "ps/client/row_calls.h"
#include "ps/shard/shard.h"

namespace gradring::testing {

class PsNet {
 public:
  static constexpr Millis kTimeout{1000};

  explicit PsNet(std::uint32_t shards);

  ps::ClientCore& core() { return core_; }
  ps::Shard& shard(std::uint32_t number) { return *seats_[number].shard; }
  std::uint32_t shards() const { return static_cast<std::uint32_t>(seats_.size()); }
  Time now() const { return now_; }

  void submit(const std::shared_ptr<ps::Call>& call) { core_.submit(call, kTimeout, now_); }
  // Moves frames until nothing moves any more.
  void settle();
  // A shard gets the next frame only so long after the one before, as over a narrow link.
  void set_frame_time(Millis time) { frame_time_ = time; }
  // Lets time pass, in small steps, and moves frames in between.
  void pass(Millis time);
  void run(const std::shared_ptr<ps::Call>& call);

  void disconnect(std::uint32_t shard);
  // Connections are refused until further notice.
  void close(std::uint32_t shard, bool is_closed);
  // The process goes and another one comes, which knows nothing.
  void restart_empty(std::uint32_t shard);

  // Asked for every frame to a shard: how often it arrives. 0: it is lost, and with it the
  // connection, as on a real one; -1: it is lost, and the connection goes on. Set by tests.
  std::function<int(std::uint32_t shard, const wire::PsHeader&)> requests;
  // The same for answers.
  std::function<int(std::uint32_t shard, const wire::PsHeader&)> answers;
  std::uint64_t frames_sent() const { return frames_sent_; }

  std::shared_ptr<ps::RemoteTable> make_table(const ps::TableSpec& spec);

 private:
  struct NoJournal final : ps::Journal {
    void append(const wire::PsHeader&, std::span<const std::byte>, std::uint32_t,
                std::uint64_t) override {}
  };
  struct Seat {
    std::unique_ptr<ps::Shard> shard;
    ps::Connection connection = 0;  // 0: none.
    bool is_closed = false;
    Time next_frame{};
    std::deque<ps::Frame> to_shard;
    std::deque<ps::Frame> to_client;
  };
  std::unique_ptr<ps::Shard> make_shard(std::uint32_t number);
  bool step(std::uint32_t number);
  bool take_output(std::uint32_t number);
  bool hand_in(std::uint32_t number);
  bool let_out(std::uint32_t number);  // Answers that the shard keeps back.
  bool hand_out(std::uint32_t number);
  void give_answers(std::uint32_t number, std::vector<ps::Answer>& given);

  NoJournal journal_;
  Time now_{Clock::duration{std::chrono::hours(1)}};
  Millis frame_time_{0};
  ps::ClientCore core_;
  std::vector<Seat> seats_;
  ps::Connection last_connection_ = 0;
  std::uint64_t incarnations_ = 100;
  std::uint64_t frames_sent_ = 0;
};

ps::TableSpec counting_table(const std::string& name, std::uint32_t dim);

}  // namespace gradring::testing
