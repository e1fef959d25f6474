// A device for tests: torch's "PrivateUse1", with memory that is the CPU's and the CPU's operations, of which none takes
// tensors of two devices. Code that runs here makes every tensor where the others are, as a GPU demands it.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <cstring>

namespace {

constexpr auto kOther = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// What torch asks of every device: memory, a current device, and streams, which have nothing to wait for.

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, c10::Device(kOther, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(kOther, &memory);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kOther> {
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kOther, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, {kOther, 0});
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream(getDevice()); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
const bool hooked = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// Operations that make tensors or copy between devices.

at::Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<c10::ScalarType> type,
    std::optional<c10::Layout>,
    std::optional<c10::Device>,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> type,
    std::optional<c10::Layout>,
    std::optional<c10::Device>,
    std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys, c10::dtype_or_default(type));
}

// The same numbers, where they stand, as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  auto owner = new c10::Storage(x.storage());
  c10::DataPtr data(
      owner->mutable_data(), owner, [](void* p) { delete static_cast<c10::Storage*>(p); }, c10::Device(c10::kCPU));
  c10::Storage same(c10::Storage::use_byte_size_t(), owner->nbytes(), std::move(data));
  return at::empty({0}, x.options().device(c10::kCPU)).set_(same, x.storage_offset(), x.sizes(), x.strides());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  at::NoGradGuard no_grad;
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// All others: the CPU's, with copies. As on a GPU, a number of the CPU's, a tensor without dimensions, may stand beside
// one of here, but not in a list of tensors.

void on_one_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool here = false, elsewhere = false;
  const auto look = [&](const at::Tensor& x, bool listed) {
    if (!x.defined()) return;
    here |= x.device().type() == kOther;
    elsewhere |= x.device().type() != kOther && (listed || x.dim() > 0);
  };
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) look(value.toTensor(), false);
    if (value.isTensorList())
      for (const at::Tensor& x : value.toTensorVector()) look(x, true);
    if (value.isOptionalTensorList())
      for (const auto& x : value.toOptionalTensorVector())
        if (x) look(*x, false);
  }
  TORCH_CHECK(!(here && elsewhere), op.schema().name(), " was given tensors of two devices");
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_one_device>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("resize_", &at::native::resize_);
  m.impl("view", &at::native::view);
}

}  // namespace
