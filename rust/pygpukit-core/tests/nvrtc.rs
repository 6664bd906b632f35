//! NVRTC for real: needs the library but no GPU. Set PYGPUKIT_TEST_NVRTC to its path.

use std::sync::Arc;

use pygpukit_core::Error;
use pygpukit_core::cuda::nvrtc::{Compiled, ImageKind, Nvrtc};

const SCALE: &str = r#"extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}"#;

fn nvrtc() -> Option<Arc<Nvrtc>> {
    match std::env::var("PYGPUKIT_TEST_NVRTC") {
        Ok(path) => Some(Nvrtc::open(&[path]).unwrap()),
        Err(_) => {
            println!("skipped: PYGPUKIT_TEST_NVRTC is not set to the path of libnvrtc");
            None
        }
    }
}

fn compile(nvrtc: &Nvrtc, source: &str, arch: &str, kind: ImageKind) -> Result<Compiled, Error> {
    nvrtc.compile(source, "test.cu", &[format!("--gpu-architecture={arch}")], &[], &[], kind)
}

#[test]
fn cubins_for_two_architectures_and_ptx() {
    let Some(nvrtc) = nvrtc() else { return };
    assert!(nvrtc.version().0 >= 12, "{nvrtc:?}");
    assert!(nvrtc.path().contains("nvrtc"), "{nvrtc:?}");
    #[cfg(target_os = "linux")]
    assert!(std::fs::read_to_string("/proc/self/maps").unwrap().contains("libnvrtc-builtins"), "not preloaded");
    for arch in ["sm_80", "sm_90a"] {
        let compiled = compile(&nvrtc, SCALE, arch, ImageKind::Cubin).unwrap();
        assert!(compiled.image.starts_with(b"\x7fELF"), "{arch}");
        assert_eq!(compiled.log, "");
        let again = compile(&nvrtc, SCALE, arch, ImageKind::Cubin).unwrap();
        assert_eq!(compiled.image, again.image, "the cache relies on equal bits for equal input");
    }
    let ptx = compile(&nvrtc, SCALE, "compute_80", ImageKind::Ptx).unwrap();
    let text = String::from_utf8(ptx.image).unwrap();
    assert!(text.contains(".entry scale") && !text.contains('\0'), "{text}");
}

#[test]
fn a_syntax_error_carries_file_line_and_reason() {
    let Some(nvrtc) = nvrtc() else { return };
    let error =
        compile(&nvrtc, "extern \"C\" __global__ void f() {\n  int x = ;\n}", "sm_80", ImageKind::Cubin).unwrap_err();
    let Error::Compile { log } = error else { panic!("{error:?}") };
    assert!(log.contains("test.cu(2): error:"), "{log}");
}

#[test]
fn name_expressions_headers_and_warnings() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = "#include \"mine.h\"\ntemplate <typename T> __global__ void add(T* x) { int unused; x[0] += ONE; }";
    let headers = [("mine.h".to_string(), "#define ONE 1".to_string())];
    let names = ["add<float>".to_string(), "add<double>".to_string()];
    let options = ["--gpu-architecture=sm_80".to_string()];
    let made = nvrtc.compile(source, "t.cu", &options, &headers, &names, ImageKind::Cubin).unwrap();
    assert_eq!(made.lowered, ["_Z3addIfEvPT_", "_Z3addIdEvPT_"]);
    assert!(made.log.contains("unused"), "{}", made.log);
}

#[test]
fn bad_input_is_an_error_that_says_what() {
    let Some(nvrtc) = nvrtc() else { return };
    let error = compile(&nvrtc, SCALE, "sm_1", ImageKind::Cubin).unwrap_err();
    assert!(matches!(&error, Error::Compile { log } if log.contains("gpu-architecture")), "{error}");
    let error = compile(&nvrtc, SCALE, "compute_80", ImageKind::Cubin).unwrap_err();
    assert!(matches!(&error, Error::Value(text) if text.contains("sm_XX")), "{error}");
    let error = compile(&nvrtc, "int x;\0", "sm_80", ImageKind::Cubin).unwrap_err();
    assert!(matches!(&error, Error::Value(text) if text.contains("NUL")), "{error}");
    let names = ["nothing<int>".to_string()];
    let options = ["--gpu-architecture=sm_80".to_string()];
    let error = nvrtc.compile(SCALE, "t.cu", &options, &[], &names, ImageKind::Cubin).unwrap_err();
    assert!(matches!(&error, Error::Compile { log } if log.contains("nothing")), "{error}");
}

#[test]
fn threads_may_compile_at_once() {
    let Some(nvrtc) = nvrtc() else { return };
    let images: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let jobs: Vec<_> =
            (0..3).map(|_| scope.spawn(|| compile(&nvrtc, SCALE, "sm_80", ImageKind::Cubin).unwrap().image)).collect();
        jobs.into_iter().map(|job| job.join().unwrap()).collect()
    });
    assert!(images.iter().all(|image| *image == images[0]));
}
