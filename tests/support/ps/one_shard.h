// A shard in a process of its own, as far as a test goes: with a log folder, one client, and a
// sparse and a dense table. It can be "killed" at any moment by letting go of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ps/log/log_folder.h"
#include "ps/protocol/payloads.h"
#include "ps/shard/shard.h"

namespace gradring::testing {

class OneShard {
 public:
  static constexpr std::uint32_t kClient = 3;
  static constexpr std::uint32_t kDim = 3;

  // `snapshot_bytes`: see ps::ShardOptions.
  explicit OneShard(const ps::LogFolderOptions& options,
                    std::uint64_t snapshot_bytes = ~std::uint64_t{0});
  ~OneShard();

  ps::Shard& shard() { return *shard_; }
  ps::LogFolder& log() { return *log_; }
  // What the shard's loop does before it sends answers.
  void sync(Time now = {}) { log_->sync(now); }

  // Says hello as this client's process; returns the last seq that was done.
  std::uint64_t join(std::uint64_t incarnation);
  void make_tables();
  // Adds `value` to these rows' floats. Throws the error that comes back.
  void push(const std::vector<std::uint64_t>& ids, float value);
  void push_dense(float value);
  std::vector<float> rows(const std::vector<std::uint64_t>& ids);
  std::vector<float> dense();
  std::uint64_t last_seq() const { return seq_; }
  // A request as it is, answered.
  ps::Frame ask(wire::PsHeader header, Bytes payload);

 private:
  void change(wire::PsHeader header, const Bytes& payload);

  ps::LogFolderOptions options_;
  std::unique_ptr<ps::LogFolder> log_;
  std::unique_ptr<ps::Shard> shard_;
  ps::Connection connection_ = 0;
  std::uint64_t seq_ = 0;
};

}  // namespace gradring::testing
