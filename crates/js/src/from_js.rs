//! Values of JavaScript to BSON.

use rquickjs::function::This;
use rquickjs::{Function, Object, Value as Js};
use sheaf_bson::{
    ArrayWriter, Binary, CodeWithScope, Decimal128, DocBuf, DocWriter, MAX_DOCUMENT_SIZE, MAX_STORED_DEPTH,
    ObjectId, OwnedValue, RawDoc, Regex, Timestamp, Value,
};
use sheaf_errors::{Code, Error, bail};

use crate::to_js::{SOURCE, SOURCES_A_CALL};

/// Why a value is none of BSON's.
pub(crate) enum Failure {
    /// What the engine says: an exception of a getter, or memory.
    Engine(rquickjs::Error),
    /// What the client is told.
    Client(Error),
}

impl From<rquickjs::Error> for Failure {
    fn from(error: rquickjs::Error) -> Self {
        Failure::Engine(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Client(error)
    }
}

type Result<T> = std::result::Result<T, Failure>;

/// Reads values of JavaScript.
pub(crate) struct FromJs<'s, 'js, 'b> {
    pub(crate) makers: &'s Object<'js>,
    /// The documents that the call was given, and its number.
    pub(crate) sources: &'s [RawDoc<'b>],
    pub(crate) call: u32,
}

/// Where a value goes.
enum Place<'w, 'd, 'k> {
    Field(&'w mut DocWriter<'d, Vec<u8>>, &'k str),
    Item(&'w mut ArrayWriter<'d, Vec<u8>>),
}

impl Place<'_, '_, '_> {
    fn put(self, value: Value<'_>) {
        match self {
            Place::Field(out, key) => _ = out.append(key, value),
            Place::Item(out) => _ = out.push(value),
        }
    }
}

impl<'js> FromJs<'_, 'js, '_> {
    /// The value; `undefined` stays that.
    ///
    /// Errors: for what BSON does not have.
    pub(crate) fn owned(&self, value: &Js<'js>) -> Result<OwnedValue> {
        let mut failed = Ok(());
        let holder = DocBuf::build(|out| failed = self.write(value, Place::Field(out, ""), None, 1));
        failed?;
        Ok(OwnedValue::from(holder.as_raw().get_or_missing("")))
    }

    /// `before` is what stood there in the document that the object was made of.
    fn write(
        &self,
        value: &Js<'js>,
        place: Place<'_, '_, '_>,
        before: Option<Value<'_>>,
        depth: usize,
    ) -> Result<()> {
        sheaf_meter::tick(4)?;
        if let Some(n) = value.as_number() {
            // A number that was an int32 and has its value is one again.
            match before {
                Some(Value::Int32(int)) if f64::from(int) == n => place.put(Value::Int32(int)),
                _ => place.put(Value::Double(n)),
            }
        } else if let Some(text) = value.as_string() {
            place.put(Value::String(&string(text)?));
        } else if let Some(truth) = value.as_bool() {
            place.put(Value::Bool(truth));
        } else if value.is_null() {
            place.put(Value::Null);
        } else if value.is_undefined() {
            place.put(Value::Undefined);
        } else if let Some(function) = value.as_function() {
            let text: String =
                function.get::<_, Function<'_>>("toString")?.call((This(function.clone()),))?;
            place.put(Value::JavaScript(&text));
        } else if let Some(object) = value.as_object() {
            self.object(object, place, depth)?;
        } else {
            bail_client(
                Code::BAD_VALUE,
                format!("cannot convert a value of type {} to BSON", value.type_name()),
            )?;
        }
        Ok(())
    }

    fn object(&self, object: &Object<'js>, place: Place<'_, '_, '_>, depth: usize) -> Result<()> {
        if depth > MAX_STORED_DEPTH {
            bail_client(
                Code(17279),
                format!(
                    "Exceeded depth limit of {MAX_STORED_DEPTH} when converting js object to BSON. Do you have a cycle?"
                ),
            )?;
        }
        if let Some(array) = object.as_array() {
            let length = length(object)?;
            let fill = |out: &mut ArrayWriter<'_, Vec<u8>>| {
                (0..length).try_for_each(|at| self.write(&array.get(at)?, Place::Item(out), None, depth + 1))
            };
            return match place {
                Place::Field(out, key) => fill(&mut out.array(key)),
                Place::Item(out) => fill(&mut out.array()),
            };
        }
        let tag: Js<'js> = object.get("$bson")?;
        if let Some(tag) = tag.as_number() {
            return self.tagged(object, tag as i32, place);
        }
        if self.is("isDate", object)? {
            let millis: f64 = object.get::<_, Function<'_>>("getTime")?.call((This(object.clone()),))?;
            place.put(Value::DateTime(millis as i64));
        } else if self.is("isRegex", object)? {
            let (pattern, flags): (String, String) = (object.get("source")?, object.get("flags")?);
            let options: String = flags.chars().filter(|flag| "ims".contains(*flag)).collect();
            place.put(Value::Regex(Regex { pattern: &pattern, options: &options }));
        } else {
            let source = self.source(object)?;
            return match place {
                Place::Field(out, key) => self.fields(object, &mut out.document(key), source, depth),
                Place::Item(out) => self.fields(object, &mut out.document(), source, depth),
            };
        }
        Ok(())
    }

    fn fields(
        &self,
        object: &Object<'js>,
        out: &mut DocWriter<'_, Vec<u8>>,
        source: Option<RawDoc<'_>>,
        depth: usize,
    ) -> Result<()> {
        for field in object.own_props::<rquickjs::String<'js>, Js<'js>>(rquickjs::object::Filter::default()) {
            let (key, value) = field?;
            let key = string(&key)?;
            if key.contains('\0') {
                bail_client(Code::BAD_VALUE, "a field's name must not contain NUL".to_owned())?;
            }
            let before = source.and_then(|source| source.get(&key));
            self.write(&value, Place::Field(out, &key), before, depth + 1)?;
        }
        Ok(())
    }

    /// The document that the object was made of in this call.
    fn source(&self, object: &Object<'js>) -> Result<Option<RawDoc<'_>>> {
        let number: Js<'js> = object.get(SOURCE)?;
        let Some(number) = number.as_number() else { return Ok(None) };
        let at = number - f64::from(self.call) * SOURCES_A_CALL;
        Ok(if (0.0..SOURCES_A_CALL).contains(&at) { self.sources.get(at as usize).copied() } else { None })
    }

    /// One of BSON's own types.
    fn tagged(&self, object: &Object<'js>, tag: i32, place: Place<'_, '_, '_>) -> Result<()> {
        match tag {
            18 => {
                let exact: Js<'js> = object.get("$v")?;
                let Some(exact) = exact.as_big_int() else { return self.broken("NumberLong") };
                place.put(Value::Int64(exact.clone().to_i64()?));
            }
            16 => place.put(Value::Int32(object.get("$v")?)),
            19 => {
                let text: String = object.get("$v")?;
                let Ok(number) = text.parse::<Decimal128>() else { return self.broken("NumberDecimal") };
                place.put(Value::Decimal128(number));
            }
            7 => {
                let text: String = object.get("str")?;
                let Some(Ok(id)) = bytes(&text).map(<[u8; 12]>::try_from) else {
                    return self.broken("ObjectId");
                };
                place.put(Value::ObjectId(ObjectId(id)));
            }
            17 => {
                let (seconds, increment): (f64, f64) = (object.get("t")?, object.get("i")?);
                place.put(Value::Timestamp(Timestamp::new(seconds as u32, increment as u32)));
            }
            5 => {
                let (subtype, text): (i32, String) = (object.get("type")?, object.get("$v")?);
                let Some(bytes) = bytes(&text) else { return self.broken("BinData") };
                place.put(Value::Binary(Binary { subtype: subtype as u8, bytes: &bytes }));
            }
            13 => {
                let (code, scope): (String, Js<'js>) = (object.get("code")?, object.get("scope")?);
                match scope.as_object() {
                    None => place.put(Value::JavaScript(&code)),
                    Some(scope) => {
                        let scope = self.owned(scope)?;
                        let Value::Document(scope) = scope.as_value() else { return self.broken("Code") };
                        place.put(Value::CodeWithScope(CodeWithScope { code: &code, scope }));
                    }
                }
            }
            12 => {
                let (namespace, id): (String, Js<'js>) = (object.get("ns")?, object.get("id")?);
                let id = self.owned(&id)?;
                let Value::ObjectId(id) = id.as_value() else { return self.broken("DBPointer") };
                place.put(Value::DbPointer(sheaf_bson::DbPointer { namespace: &namespace, id }));
            }
            127 => place.put(Value::MaxKey),
            255 => place.put(Value::MinKey),
            _ => return self.broken("value"),
        }
        Ok(())
    }

    fn is(&self, question: &str, object: &Object<'js>) -> Result<bool> {
        Ok(self.makers.get::<_, Function<'js>>(question)?.call((object.clone(),))?)
    }

    /// What a function has made of a value's inside.
    fn broken(&self, what: &str) -> Result<()> {
        bail_client(Code::BAD_VALUE, format!("a {what} whose contents were changed is no value of BSON"))
    }
}

/// The text of a string; lone surrogates become replacement characters.
fn string(text: &rquickjs::String<'_>) -> std::result::Result<String, rquickjs::Error> {
    match text.to_string() {
        Err(rquickjs::Error::Utf8(_)) => {
            let method: Function<'_> =
                text.as_value().ctx().globals().get::<_, Object<'_>>("$sandbox")?.get("wellFormed")?;
            method.call((text.clone(),))
        }
        done => done,
    }
}

/// How many elements an array has; the engine's own way to ask takes it for granted that there are fewer than 2^31.
///
/// Errors: `BSONObjectTooLarge` for more than a document has room for.
fn length(array: &Object<'_>) -> Result<usize> {
    let length: Js<'_> = array.get("length")?;
    let length = length.as_number().unwrap_or(0.0).max(0.0);
    if length > MAX_DOCUMENT_SIZE as f64 {
        bail_client(
            Code::BSON_OBJECT_TOO_LARGE,
            format!(
                "an array of {length} elements is larger than a document may be ({MAX_DOCUMENT_SIZE} bytes)"
            ),
        )?;
    }
    Ok(length as usize)
}

fn bail_client(code: Code, message: String) -> Result<()> {
    let refused = || -> sheaf_errors::Result<()> { bail!(code, "{message}") };
    Ok(refused()?)
}

/// Hexadecimal digits as bytes.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    if !digits.len().is_multiple_of(2) || !hex.is_ascii() {
        return None;
    }
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
