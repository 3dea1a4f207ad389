//! What the targets judge by. Not in one process with the corpus, where no panic is expected.

#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use counterfoil::native::Invocation;
use fuzz::meaning::{Means, meaning, rules};
use fuzz::model::{Expected, Model};
use fuzz::{call, canonical, rpc, tokens};
use serde_json::json;
use std::panic::{RefUnwindSafe, catch_unwind};

#[test]
fn the_rules_say_what_arguments_mean() {
    let of = |tool: &str, json: &str| meaning(rules(tool).unwrap(), json);
    let text = |text: &str| Means::Text(text.to_owned());
    let id = r#"{"note_id":"?"}"#;
    let named = Some(vec![Means::Id(0x0189_0a5d_ac96_774b_bcce_b302_099a_8057)]);
    let spellings = "01890a5d-ac96-774b-bcce-b302099a8057 01890A5Dac96774bbcceb302099a8057 \
        {01890a5d-ac96-774b-bcce-b302099a8057} URN:uuid:01890a5d-ac96-774b-bcce-b302099a8057";
    for spelling in spellings.split(' ') {
        assert_eq!(of("get_note", &id.replace('?', spelling)), named, "{spelling}");
    }
    for wrong in ["{01890a5dac96774bbcceb302099a8057}", "01890a5d-ac96-774bbcce-b302099a8057", "01890a5d", ""] {
        assert_eq!(of("get_note", &id.replace('?', wrong)), None, "{wrong}");
    }
    let right = r#" {"interval_minutes":3e1,"\u0069dempotency_key":"k"}"#;
    assert_eq!(of("create_automation", right), Some(vec![text("k"), Means::Number(30)]));
    for wrong in [
        r#"{"interval_minutes":30.5,"idempotency_key":"k"}"#,
        r#"{"interval_minutes":1441,"idempotency_key":"k"}"#,
        r#"{"interval_minutes":30,"idempotency_key":"k/"}"#,
        r#"{"interval_minutes":30,"idempotency_key":"k","idempotency_key":"k"}"#,
        r#"{"interval_minutes":30,"idempotency_key":"k","x":1}"#,
        r#"{"interval_minutes":30}"#,
        r#"[30,"k"]"#,
    ] {
        assert_eq!(of("create_automation", wrong), None, "{wrong}");
    }
}

/// What a target finds it tells: each of its judgements is shown a wrong answer.
#[test]
fn a_wrong_answer_is_noticed() {
    let is_noticed = |work: &(dyn Fn() + RefUnwindSafe)| catch_unwind(work).is_err();
    let one = || ("a".to_owned(), vec![Means::Number(1)]);
    assert!(is_noticed(&|| canonical::agree(&one(), &("a".to_owned(), vec![Means::Number(2)]))));
    assert!(is_noticed(&|| canonical::agree(&one(), &("b".to_owned(), vec![Means::Number(1)]))));
    assert!(!is_noticed(&|| canonical::agree(&one(), &one())));

    let ada = counterfoil::Principal {
        workspace: "acme".to_owned(),
        subject: "ada".to_owned(),
        permissions: vec!["write-notes".to_owned()],
    };
    let arguments = r#"{"idempotency_key":"k","body":"b"}"#;
    let note = Invocation { tool: "create_note".to_owned(), arguments: arguments.to_owned() };
    let told =
        json!({ "status": "succeeded", "replayed": false, "valid_until": "", "note_id": "1", "operation_id": "2" });
    let mut model = Model::default();
    let expect = |model: &Model, text: &str| model.expect(Some(&ada), "create_note", text);
    assert_eq!(expect(&model, arguments), Expected::Fresh);
    assert_eq!(model.expect(None, "create_note", arguments), Expected::Refused("denied"));
    model.keep(&ada, "create_note", arguments, &told);
    let mut again = told.clone();
    again["replayed"] = json!(true);
    let replay = expect(&model, r#"{"body":"\u0062","idempotency_key":"k"}"#);
    assert_eq!(replay, Expected::Replay(again.clone()));
    assert_eq!(expect(&model, &arguments.replace("\"b\"}", "\"c\"}")), Expected::Refused("key_conflict"));
    call::check(&Expected::Fresh, &told, &note);
    call::check(&replay, &again, &note);
    assert!(is_noticed(&|| call::check(&Expected::Fresh, &again, &note)));
    assert!(is_noticed(&|| call::check(&replay, &told, &note)));
    assert!(is_noticed(&|| call::check(&Expected::Refused("key_conflict"), &again, &note)));

    let answer = json!({ "jsonrpc": "2.0", "id": "7", "result": { "isError": false, "structuredContent": told } });
    rpc::check(&answer, "7", true);
    assert!(is_noticed(&|| rpc::check(&answer, "8", true)));
    assert!(is_noticed(&|| rpc::check(&json!({ "jsonrpc": "2.0", "id": "7", "error": {} }), "7", true)));

    let listed = "[[token]]\nname = 'n'\nsubject = 's'\nworkspace = 'w'\npermissions = []\n\
        sha256 = '23c87296d316f23ac3df625cd9e6406fe7b9182d63a5de9fe5ceb6356309a625'\n";
    let shown = format!("counterfoil_{}", "0".repeat(64));
    let let_in = tokens::expected(listed.as_bytes(), &shown);
    let who =
        || Some(host_example::Principal { workspace: "w".to_owned(), subject: "s".to_owned(), permissions: vec![] });
    tokens::check(&let_in, &Ok(who()), b"");
    assert!(is_noticed(&|| tokens::check(&let_in, &Ok(None), b"")));
    let nobody = tokens::expected(listed.as_bytes(), &shown[..75]);
    assert!(is_noticed(&|| tokens::check(&nobody, &Ok(who()), b"")));
    assert!(is_noticed(&|| tokens::check(&tokens::expected(b"x = 1", &shown), &Ok(None), b"")));
}
