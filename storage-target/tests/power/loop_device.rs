//! Loop devices: block devices over files. They need root, and `losetup` of util-linux. Without
//! them a test fails, unless `MILLRACE_TEST_WITHOUT_LOOP_DEVICES` is set.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A loop device, detached when it is dropped, whatever became of the test.
pub(crate) struct LoopDevice(pub(crate) PathBuf);

impl LoopDevice {
    /// `None` where there are none and need not be any, which is said.
    #[expect(clippy::print_stderr, reason = "who reads the test's output learns what was skipped")]
    pub(crate) fn attach(image: &Path) -> Option<Self> {
        if !fs::exists("/dev/loop-control").unwrap() {
            let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_LOOP_DEVICES").is_some();
            assert!(may_lack, "no /dev/loop-control, so no loop devices");
            eprintln!("SKIPPED: no /dev/loop-control, so no loop devices");
            return None;
        }
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let attached = attached.expect("losetup of util-linux");
        assert!(attached.status.success(), "losetup: {attached:?}");
        let path = String::from_utf8(attached.stdout).unwrap();
        Some(Self(PathBuf::from(path.trim_end())))
    }
}

impl Drop for LoopDevice {
    #[expect(clippy::print_stderr, reason = "a device that stays attached must be seen")]
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} is still attached", self.0.display());
        }
    }
}
