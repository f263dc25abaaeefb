// A CUDA device that computes nothing, for PyTorch's builds without CUDA: tensors without values have a device, and
// backward passes a thread. It has one stream, which is always finished.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

struct NoDevice final : c10::impl::DeviceGuardImplInterface {
  static Device only() { return {DeviceType::CUDA, 0}; }
  static Stream stream() { return Stream(Stream::DEFAULT, only()); }

  DeviceType type() const override { return DeviceType::CUDA; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Device getDevice() const override { return only(); }
  Device exchangeDevice(Device) const override { return only(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return stream(); }
  Stream getDefaultStream(Device) const override { return stream(); }
  Stream exchangeStream(Stream) const override { return stream(); }
  void record(void **, const Stream &, DeviceIndex, c10::EventFlag) const override {}
  void block(void *, const Stream &) const override {}
  bool queryEvent(void *) const override { return true; }
  void destroyEvent(void *, DeviceIndex) const noexcept override {}
  bool queryStream(const Stream &) const override { return true; }
  void synchronizeStream(const Stream &) const override {}
  void synchronizeEvent(void *) const override {}
};

const NoDevice device;
const c10::impl::DeviceGuardImplRegistrar registered(DeviceType::CUDA, &device);

}  // namespace

namespace at {

struct NoHooks final : CUDAHooksInterface {
  explicit NoHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, NoHooks)

}  // namespace at
