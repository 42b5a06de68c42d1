// RuleChange: gives tables other settings of their rules so that every shard ends with the same
// ones, however many clients do that at once and in whatever order shards hear of them. Each change
// has a number; of two that meet on a shard the larger one holds, of two equal ones that of the
// larger client. No I/O: whoever has one makes its calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ps/client/plain_call.h"
#include "ps/client/remote_table.h"

namespace gradring::ps {

class RuleChange {
 public:
  // Throws InvalidArgument if rows of the table cannot go on under it.
  void add(const std::shared_ptr<RemoteTable>& table, const kernels::Rule& rule);
  // The call to make first, or anew.
  std::shared_ptr<PlainCall> begin();
  // After one that was answered everywhere: what is still to be done; none: that was all. The
  // second one is always the last: what was there before it does not beat it, and of what came
  // meanwhile it does not matter which is in force.
  std::shared_ptr<PlainCall> go_on(const PlainCall& done);

 private:
  struct Wanted {
    std::shared_ptr<RemoteTable> table;
    kernels::Rule rule;
  };
  std::shared_ptr<PlainCall> call() const;

  std::vector<Wanted> wanted_;
  bool is_last_ = false;
};

// Of what all shards have said when the table was made: where some lack the last change of its
// rule, since its client died before they heard of it, the call that repeats it on all. It does so
// in that client's name, and beats nothing that came later. None: they agree, or have not said.
std::shared_ptr<PlainCall> repeat_last_change(RemoteTable& table,
                                              std::span<const PlainCall::Answered> made);

}  // namespace gradring::ps
