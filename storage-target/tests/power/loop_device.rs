//! Loop devices: block devices over files. They need root, and `losetup` of util-linux. Without
//! them a test fails, unless `MILLRACE_TEST_WITHOUT_LOOP_DEVICES` is set.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// A loop device, detached when it is dropped, whatever became of the test.
pub(crate) struct LoopDevice(pub(crate) PathBuf);

impl LoopDevice {
    /// `None` where there are none and need not be any, which is said.
    #[expect(clippy::print_stderr, reason = "who reads the test's output learns what was skipped")]
    pub(crate) fn attach(image: &Path) -> Option<Self> {
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        match attached {
            Ok(done) if done.status.success() => {
                let path = String::from_utf8(done.stdout).unwrap();
                Some(Self(PathBuf::from(path.trim_end())))
            }
            refused => {
                let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_LOOP_DEVICES").is_some();
                assert!(may_lack, "no loop device can be attached here: {refused:?}");
                eprintln!("SKIPPED: no loop device can be attached here: {refused:?}");
                None
            }
        }
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
